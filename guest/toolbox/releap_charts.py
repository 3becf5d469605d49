"""The matplotlib backend of code runs: figures that are shown become charts of the result, as lines of JSON."""

import base64
import io
import json
import math
import os

from matplotlib import collections, container, patches
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

OUTPUT = int(os.environ.pop("RELEAP_CHARTS_FD"))
BYTES_MAX = int(os.environ.pop("RELEAP_CHARTS_MAX"))
# Points of one line, and elements of one chart.
POINTS_MAX = 10_000


class ChartManager(FigureManagerBase):
    def show(self):
        send(self.canvas.figure)


class ChartCanvas(FigureCanvasAgg):
    manager_class = ChartManager


FigureCanvas = ChartCanvas
FigureManager = ChartManager


def show(*_args, **_options):
    for manager in Gcf.get_all_fig_managers():
        send(manager.canvas.figure)
    Gcf.destroy_all()


def send(figure):
    line = json.dumps(chart_of(figure)).encode() + b"\n"
    if os.fstat(OUTPUT).st_size + len(line) <= BYTES_MAX:
        os.write(OUTPUT, line)


def chart_of(figure):
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    charts = [chart_of_axes(axes) for axes in figure.axes]
    if len(charts) == 1:
        chart = charts[0]
    else:
        title = getattr(figure, "_suptitle", None)
        chart = {"type": "composite_chart" if charts else "unknown", "elements": charts}
        chart["title"] = title.get_text() if title else ""
    chart["png"] = base64.b64encode(image.getvalue()).decode()
    return chart


def chart_of_axes(axes):
    chart = {
        "title": axes.get_title(),
        "x_label": axes.get_xlabel(),
        "y_label": axes.get_ylabel(),
    }
    kind, elements = elements_of(axes)
    chart["type"] = kind
    chart["elements"] = elements[:POINTS_MAX]
    if kind in ("line", "scatter"):
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            chart[name + "_ticks"] = numbers(axis.get_ticklocs())
            chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
            chart[name + "_scale"] = axis.get_scale()
    return chart


def elements_of(axes):
    wedges = [patch for patch in axes.patches if isinstance(patch, patches.Wedge)]
    if wedges:
        return "pie", [
            {"label": label_of(wedge), "angle": abs(float(wedge.theta2 - wedge.theta1)), "radius": float(wedge.r)}
            for wedge in wedges
        ]
    boxes = getattr(axes, "_releap_boxes", None)
    if boxes:
        return "box_and_whisker", boxes
    bars = [one for one in axes.containers if isinstance(one, container.BarContainer)]
    if bars:
        return "bar", [element for group in bars for element in bars_of(axes, group)]
    lines = [
        {"label": label_of(line), "points": points(line.get_xdata(orig=False), line.get_ydata(orig=False))}
        for line in axes.lines
    ]
    if lines:
        return "line", lines
    dots = [
        {"label": label_of(one), "points": points(*one.get_offsets().T)}
        for one in axes.collections
        if isinstance(one, collections.PathCollection)
    ]
    return ("scatter", dots) if dots else ("unknown", [])


def bars_of(axes, group):
    across = getattr(group, "orientation", "vertical") == "horizontal"
    axis = axes.yaxis if across else axes.xaxis
    named = dict(zip(numbers(axis.get_ticklocs()), (label.get_text() for label in axis.get_ticklabels())))
    for bar in group.patches:
        start, size, value = (
            (bar.get_y(), bar.get_height(), bar.get_width())
            if across
            else (bar.get_x(), bar.get_width(), bar.get_height())
        )
        middle = number(start + size / 2)
        label = named.get(middle) or f"{middle:g}"
        yield {"label": label, "group": label_of(group), "value": f"{value:g}"}


def label_of(artist):
    """Labels that matplotlib gives by itself begin with an underscore."""
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else label


def number(value):
    value = float(value)
    return round(value, 12) if math.isfinite(value) else None


def numbers(values):
    return [number(value) for value in list(values)[:POINTS_MAX]]


def points(x, y):
    return [list(point) for point in zip(numbers(x), numbers(y))]


def keep_statistics(draw):
    """The artists of a box plot no longer have its numbers."""

    def bxp(self, statistics, *args, **options):
        boxes = [
            {
                "label": str(one.get("label") or index),
                "min": number(one["whislo"]),
                "first_quartile": number(one["q1"]),
                "median": number(one["med"]),
                "third_quartile": number(one["q3"]),
                "max": number(one["whishi"]),
                "outliers": numbers(one.get("fliers", ())),
            }
            for index, one in enumerate(statistics, 1)
        ]
        self._releap_boxes = getattr(self, "_releap_boxes", []) + boxes
        return draw(self, statistics, *args, **options)

    return bxp


Axes.bxp = keep_statistics(Axes.bxp)
