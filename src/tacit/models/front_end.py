"""Front ends: fixed features of a record, before a network that is learnt."""

import dataclasses

from tacit.errors import InvalidArgumentError
from tacit.models.cnn import CNN
from tacit.models.mlp import MLP
from tacit.models.steps import Encode, Step, run
from tacit.models.whitening import FrontEnd
from tacit.typing import Array, Input, Key, Params

__all__ = ["FixedFrontEnd"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedFrontEnd:
    """A network that sees features of an image in place of its pixels.

    The parameters are those of the head: the front end has none. Where many steps are trained, take
    the features once (`extract_features`), train the head, and put the front end back
    (`with_front_end`).

    Attributes:
      front_end: takes the features.
      head: the network on them: an `MLP` with ``front_end.num_features`` inputs, or a `CNN` with
        ``front_end.output_shape``.

    Example:
      >>> import jax
      >>> from tacit.models import Scattering
      >>> front_end = Scattering(image_shape=(8, 8), num_orientations=2, num_groups=None)
      >>> head = MLP(num_inputs=front_end.num_features, num_outputs=10)
      >>> network = FixedFrontEnd(front_end=front_end, head=head)
      >>> params = network.init(jax.random.key(0))
      >>> network.apply(params, jax.numpy.ones((8, 8)), jax.random.key(1)).shape
      (10,)
    """

    front_end: FrontEnd
    head: MLP | CNN

    def __post_init__(self) -> None:
        if not isinstance(self.front_end, FrontEnd):
            raise InvalidArgumentError(
                f"front_end must be a front end such as Scattering(); got {self.front_end!r}."
            )
        # Exact types: what the head does must be what its description says.
        if type(self.head) not in (MLP, CNN):
            raise InvalidArgumentError(f"head must be an MLP or a CNN; got {self.head!r}.")
        given, needed = (
            (f"num_inputs={self.head.num_inputs}", f"num_inputs={self.front_end.num_features}")
            if isinstance(self.head, MLP)
            else (
                f"input_shape={self.head.input_shape}",
                f"input_shape={self.front_end.output_shape}",
            )
        )
        if given != needed:
            raise InvalidArgumentError(
                f"the head must have {needed}, the features of {self.front_end}; got {given}."
            )

    @property
    def num_outputs(self) -> int:
        """How many numbers come out."""
        return self.head.num_outputs

    def init(self, key: Key) -> Params:
        """Draws the parameters of the head."""
        return self.head.init(key)

    def apply(self, params: Params, x: Input, key: Key) -> Array:
        """Maps one image to ``(num_outputs,)``; the key draws what the head drops."""
        return run(self.steps, params, x, key)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What `apply` does, in order."""
        return (Encode(self.front_end), *self.head.steps)
