"""Where an open file lies: on a disk of this machine, or on another one's."""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_local"]

_NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "smb")


def is_local(handle: int, process: Path = Path("/proc/self")) -> bool:
    """Whether the open file `handle` lies on a file system that no other machine or process serves.

    True where the system does not say: there is no `process` folder but on Linux.
    """
    try:
        mount = _field((process / "fdinfo" / str(handle)).read_text(), "mnt_id:")
        lines = (process / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return True
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[0] == mount]
    return not any(kind.startswith((*_NETWORK, "fuse.")) for kind in kinds)


def _field(text: str, name: str) -> str | None:
    """The value after `name` in lines of a name and a value."""
    return next((line[len(name) :].strip() for line in text.splitlines() if line.startswith(name)), None)
