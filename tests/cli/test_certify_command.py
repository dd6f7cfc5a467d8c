"""``tacit certify``: what no change of the inputs can do, on public and on private records."""

import json

import pytest

from cli.tables import refused, tacit


def certificate(folder, *options):
    words = ["certify", folder / "run", folder / "data.csv", *options, "--json"]
    told = json.loads(tacit(*words).stdout)
    assert set(told) == {"data", "norm", "points", "method"}
    return told


def test_a_certificate_falls_with_the_radius_and_says_its_unit(classes):
    found = certificate(classes, "--radius", 0.5, "--radius", 0.05, "--public")
    assert json.loads((classes / "run/certificate.json").read_text()) == found
    assert [point["radius"] for point in found["points"]] == [0.0, 0.05, 0.5]
    shares = [point["certified"] for point in found["points"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(found["points"][0]["accuracy"], abs=0.01)
    assert found["norm"] == "l-infinity"
    assert "[-1, 1]" in found["method"]
    told = tacit("certify", classes / "run", classes / "data.csv", "--radius", 0.05, "--norm", "l2")
    assert "features lie in [-1, 1]" in told.stdout
    assert "Not written to the run" in told.stdout
    tacit("report", classes / "run")
    assert "Certified robustness" in (classes / "run/report.html").read_text()


def test_private_records_are_charged(classes):
    found = certificate(classes, "--radius", 0.05, "--epsilon", 2, "--delta", 1e-3, "--first", 100)
    assert found["data"]["num_records"] == 100
    assert found["data"]["statement"]["releases"] == 1
    assert found["data"]["statement"]["epsilon"] <= 2
    assert "figures of this document" in found["data"]["statement"]["artefacts_covered"][0]


def test_what_cannot_be_certified_is_refused(classes, numbers):
    data = classes / "data.csv"
    assert "is about classes" in refused(
        "certify", numbers / "run", numbers / "data.csv", "--radius", 0.1
    )
    assert "--radius must be a positive" in refused("certify", classes / "run", data, "--radius", 0)
    error = refused("certify", classes / "run", data, "--radius", 0.1, "--first", 0)
    assert "--first must be" in error
    assert "is not a run" in refused("certify", classes / "nothing", data, "--radius", 0.1)
