"""Random Pydantic models with the types and constraints that people use, the same ones for the same seed."""
import datetime
import decimal
import enum
import ipaddress
import pathlib
import random
import typing
import uuid

import annotated_types as at
import pydantic
import typing_extensions
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, conint, conlist, constr

WORDS = ["name", "id", "tags", "amount", "when", "kind", "items", "note", "owner", "state", "level", "path", "links", "score", "code", "meta"]


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Point(typing.NamedTuple):
    x: int
    y: float


class Options(typing_extensions.TypedDict, total=False):
    verbose: bool
    depth: int


class Node(BaseModel):
    value: int = Field(ge=0, le=9)
    children: list["Node"] = Field(default_factory=list, max_length=2)


class Cat(BaseModel):
    kind: typing.Literal["cat"]
    lives: conint(ge=1, le=9)


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: typing.Literal["dog"]
    name: str


class Fish(BaseModel):
    kind: typing.Literal["fish", "eel"] = "fish"
    depth: float | None = None


Annotated = typing.Annotated
SIMPLE = [
    str, int, float, bool, None, bytes, decimal.Decimal, uuid.UUID, uuid.UUID, datetime.date, datetime.datetime, datetime.time, datetime.timedelta,
    pathlib.Path, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv4Interface, AnyUrl, pydantic.HttpUrl,
    Color, Level, typing.Any, pydantic.UUID4, pydantic.UUID1, pydantic.SecretStr, pydantic.Json, pydantic.StrictInt, pydantic.PositiveInt,
    pydantic.NegativeFloat, pydantic.NonNegativeInt, pydantic.IPvAnyAddress, pydantic.AwareDatetime, pydantic.Base64Bytes, pydantic.Base64UrlBytes,
    typing.Literal["a", "b", 3, True, None], Point, Options, Node, Cat, Dog, Fish,
    constr(min_length=1, max_length=12), constr(pattern=r"^[a-z]+$"), constr(pattern=r"^[A-Z]{2}\d+$", max_length=8), constr(pattern=r"\d", min_length=3),
    constr(strip_whitespace=True, to_lower=True), conint(multiple_of=5), conint(gt=3, lt=100, multiple_of=7), Annotated[float, Field(multiple_of=0.5)],
    Annotated[float, Field(ge=-1, le=1)], Annotated[float, Field(gt=0)], 
    Annotated[decimal.Decimal, Field(gt=0, le=100)], Annotated[str, Field(pattern=r"^(?:\+49|0)[1-9]\d{3,}$")], Annotated[int, at.Interval(ge=1, le=3)],
    Annotated[int | str, Field(union_mode="left_to_right")], Annotated[Cat | Dog | Fish, Field(discriminator="kind")], type(None),
]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.n_models = 0

    def type(self, depth):
        r = self.random
        if depth >= 2 or r.random() < 0.5:
            return r.choice(SIMPLE)
        kind = r.randrange(13)
        inner = self.type(depth + 1)
        if kind == 0:
            return typing.Optional[inner]
        if kind == 1:
            return list[inner]
        if kind == 2:
            return conlist(inner, min_length=r.randint(0, 2), max_length=3)
        if kind == 3:
            return dict[str, inner]
        if kind == 4:
            return dict[r.choice([Color, typing.Literal["x", "y"], uuid.UUID, constr(pattern="^[a-z]{1,5}$")]), inner]
        if kind == 5:
            return tuple[inner, self.type(depth + 1)]
        if kind == 6:
            return tuple[inner, ...]
        if kind == 7:
            return set[r.choice([str, int, Color, bool, datetime.date, float, uuid.UUID, Level])]
        if kind == 8:
            return frozenset[r.choice([str, int, typing.Literal["p", "q", "r"]])]
        if kind == 9:
            return typing.Union[inner, self.type(depth + 1)]
        if kind == 10:
            return Annotated[dict[str, inner], Field(min_length=1, max_length=3)]
        if kind == 11:
            return Annotated[set[r.choice([str, int])], Field(min_length=1, max_length=4)]
        return self.model(depth + 1)

    def model(self, depth=0):
        r = self.random
        self.n_models += 1
        fields = {}
        for name in r.sample(WORDS, r.randint(1, 6 if depth == 0 else 3)):
            annotation = self.type(depth)
            options = {}
            if r.random() < 0.3:
                options["description"] = "what it is"
            if r.random() < 0.1:
                options["title"] = name.upper()
            if r.random() < 0.15:
                options["alias"] = name + "-alias"
            if r.random() < 0.3:
                annotation, options["default"] = typing.Optional[annotation], None
            fields[name] = (annotation, Field(**options))
        config = ConfigDict(extra=r.choice(["ignore", "ignore", "forbid", "allow"]))
        return pydantic.create_model(f"Model{self.n_models}", __config__=config, __doc__="A model." if r.random() < 0.5 else None, **fields)


def model(seed):
    return Generator(seed).model()
