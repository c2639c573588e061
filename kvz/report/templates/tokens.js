// One handler for all tokens: says what the run under the pointer is.
(() => {
  const text = document.getElementById("text"), readout = document.getElementById("readout");
  const heads = Number(text.dataset.heads), prefix = Number(text.dataset.prefix);
  const shown = n => n.toLocaleString("en");
  let marked = null;
  text.addEventListener("pointerover", event => {
    const run = event.target.closest("[data-t]");
    if (!run) return;
    const first = Number(run.dataset.t), count = Number(run.dataset.n), kept = Number(run.dataset.k);
    const last = first + count - 1, share = (100 * kept / heads).toFixed(1);
    const which = count > 1 ? `tokens ${shown(first)} to ${shown(last)} (positions ${shown(first + prefix)} to ${shown(last + prefix)})`
      : `token ${shown(first)} (position ${shown(first + prefix)})`;
    readout.textContent = `${which}: kept by ${shown(kept)} of ${shown(heads)} heads (${share} %)` + (count > 1 ? " each" : "");
    readout.className = "";
    if (marked) marked.classList.remove("on");
    run.classList.add("on");
    marked = run;
  });
})();
