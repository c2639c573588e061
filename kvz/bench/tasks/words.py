"""Words, numbers and identifiers to make tasks of, all drawn from a seeded generator."""

from __future__ import annotations

import string
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import TypeVar

__all__ = ["MOST_WORDS", "NUMBER", "UUID", "WORD", "Kind", "distinct", "generator", "growing", "letters"]

T = TypeVar("T")

_ADJECTIVES = """
amber ample ancient ashen autumn bare bitter blank blunt bold brass brave bright brisk broad bronze calm careful
cheerful chilly clean clear clever cloudy coarse cobalt copper coral crimson crisp curious daring deep distant dusty
eager early earnest empty faint famous fancy feathered fierce firm flat fragile frosty gentle giant gilded glassy
gloomy golden graceful grand grateful green hasty heavy hidden hollow honest humble icy idle indigo iron ivory jolly
keen lively lonely loud lucky marble mellow merry mild misty modest narrow nimble noble odd pale patient plain
polite proud quick quiet rapid rare restless rigid rosy rough royal rustic sandy scarlet seaside shallow sharp shy
silent silver simple sleepy slender smooth snowy soft solemn spare stately steady steep stern sturdy subtle sunny
swift tidy timid velvet vivid warm weary wild windy winter wise wooden young
"""
_NOUNS = """
acorn anchor anvil apple arrow badger balcony banner barrel basket beacon beaver bell bench blanket bottle bridge
broom bucket button cabin candle canyon carpet castle cedar cello chimney circle clock cloud cobbler comet compass
cradle cricket crown crystal curtain daisy desert dolphin donkey dragon drum eagle engine falcon feather fiddle
field flute forest fountain garden gate glacier glove goose granite hammer harbour hazel helmet heron hill horizon
island ivy jacket jar kettle key kitten ladder lagoon lantern lark lemon library lily lizard magnet maple market
meadow melon mill mirror mitten monument mountain needle nest oak oasis orchard otter oven owl paddle palace parcel
parrot pebble pencil pepper piano pigeon pillow planet plough pocket pond pumpkin puzzle quarry quilt rabbit raven
ribbon river rocket saddle sailor salmon shelf shepherd shovel sparrow spoon stable statue stream summit table
teapot temple thimble tiger timber torch tower trumpet tulip tunnel turnip valley violin wagon walnut whistle willow
window workshop
"""

MOST_WORDS = len(_ADJECTIVES.split()) * len(_NOUNS.split()) * 3 // 4
"""How many different words can be drawn without waiting long for a new one."""


@dataclass(frozen=True)
class Kind:
    """A kind of key or value: what one and several are called, and how one is drawn."""

    one: str
    several: str
    draw: Callable[[Random], str]


def _word(draw: Random) -> str:
    return f"{draw.choice(_ADJECTIVES.split())}-{draw.choice(_NOUNS.split())}"


def _number(draw: Random) -> str:
    return str(draw.randrange(10**6, 10**7))


def _uuid(draw: Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


WORD = Kind("word", "words", _word)
NUMBER = Kind("number", "numbers", _number)
UUID = Kind("identifier", "identifiers", _uuid)


def letters(draw: Random, count: int, alphabet: str = string.ascii_lowercase) -> str:
    """A word of random letters."""
    return "".join(draw.choices(alphabet, k=count))


def generator(*parts: object) -> Random:
    """A generator of its own for a seed, a task and a sample, the same wherever it is made."""
    return Random("/".join(map(str, parts)))


def distinct(draw_one: Callable[[], str], count: int, taken: Collection[str] = ()) -> list[str]:
    """`count` different draws, none of them in `taken`."""
    found: dict[str, None] = {}
    while len(found) < count:
        value = draw_one()
        if value not in taken:
            found[value] = None
    return list(found)


def growing(draw_one: Callable[[], T]) -> Callable[[int], list[T]]:
    """A function that gives the first `n` of a series of draws, the same ones whatever was asked before."""
    drawn: list[T] = []

    def first(count: int) -> list[T]:
        while len(drawn) < count:
            drawn.append(draw_one())
        return drawn[:count]

    return first
