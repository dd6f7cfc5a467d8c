"""The picture of a trade-off curve: what the best attack finds, against what it costs."""

from collections.abc import Mapping

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tacit.errors import InvalidArgumentError
from tacit.privacy.trade_off import TradeOff

__all__ = ["trade_off_figure"]

# Okabe and Ito's palette: told apart with any common colour blindness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_INK, _GREY = "#222222", "#767676"


def trade_off_figure(curves: Mapping[str, TradeOff]) -> Figure:
    """Returns a figure of trade-off curves, on plain axes and on logarithmic ones.

    The diagonal is an attack that guesses. The logarithmic panel shows what matters most: how many
    people can be found with hardly a false alarm.

    Args:
      curves: by the name in the legend; one to four.

    Example:
      >>> import io
      >>> curve = TradeOff.of_promise(epsilon=1.0, delta=1e-5)
      >>> trade_off_figure({"ε = 1": curve}).savefig(io.BytesIO())
    """
    if not 1 <= len(curves) <= len(_COLOURS):
        raise InvalidArgumentError(
            f"curves must hold one to {len(_COLOURS)} curves; got {len(curves)}."
        )
    figure = Figure(figsize=(8.0, 4.3), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    plain, logarithmic = figure.subplots(1, 2)
    rates = np.unique(np.concatenate([np.geomspace(1e-4, 1.0, 200), np.linspace(0.0, 1.0, 201)]))
    logarithmic.set(xscale="log", yscale="log")
    for axes in (plain, logarithmic):
        axes.plot(rates, rates, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), label="guessing")
        for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
            found = curve.true_positive_rate(rates)
            axes.plot(rates, found, color=colour, linewidth=2, label=name)
            axes.fill_between(rates, rates, found, color=colour, alpha=0.12, linewidth=0)
        axes.set_xlabel("false positives: absent people who are accused", fontsize=9.5, color=_INK)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(_GREY)
        axes.tick_params(labelsize=9, color=_GREY)
        axes.set_aspect("equal")
    plain.set(xlim=(0, 1), ylim=(0, 1))
    logarithmic.set(xlim=(1e-4, 1), ylim=(1e-4, 1))
    plain.set_ylabel("true positives at most: present people found", fontsize=9.5, color=_INK)
    plain.set_title("what the best attack can do", fontsize=10.5, fontweight="bold", color=_INK)
    logarithmic.set_title("with few false alarms", fontsize=10.5, fontweight="bold", color=_INK)
    handles, labels = plain.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure
