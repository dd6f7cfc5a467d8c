"""A table with scikit-learn: from census records to a posterior that may be published.

The story: a statistical office holds records of people and wants to publish a model that predicts
who earns more than 50 000 dollars, so that nothing can be learnt from it about any one of them. The
records are those of UCI Adult, which ship with the package. Run it with

    python -m examples.tutorials.table
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tacit import PrivateBayesClassifier
from tacit.data import ADULT_SCHEMA, load_adult
from tacit.studies import load_fitted_table

__all__ = ["run"]


def run(
    directory: Path, *, num_records: int | None = None, random_state: int | None = None
) -> dict[str, float]:
    """Fits, looks at predictions, saves the run, and loads it as somebody else would."""
    train, test = load_adult()
    train = train[:num_records]

    # 1. Say what is public. The schema lists columns, ranges, categories and classes from the code
    #    book, and nothing read off the records. ADULT_SCHEMA.to_toml() shows how to write one.
    # 2. Say what may be spent. Settings that are not given follow from public facts.
    model = PrivateBayesClassifier(
        epsilon=1.0, delta=1e-5, schema=ADULT_SCHEMA, random_state=random_state
    )

    # 3. Fit. Raw columns go in as they are: text, gaps, values out of range.
    model.fit(train, train.income)

    # 4. Predict, on records that are public or whose people agreed. The test part counts as that.
    accuracy = model.score(test, test.income)
    aleatoric, epistemic, _ = model.predict_uncertainty(test)
    print(f"accuracy on {len(test)} test records: {accuracy:.3f}")

    #    Where the posterior is least certain it is most often wrong: those cases go to a person.
    right = model.predict(test) == np.asarray(test.income)
    sure = np.argsort(aleatoric + epistemic)[: len(test) // 2]
    print(f"accuracy on the half that it is surest of: {right[sure].mean():.3f}")

    # 5. Publish the folder: posterior, schema and statement, and no record.
    model.table_.save(directory)
    print(model.privacy_)

    # 6. Whoever receives it needs neither the records nor scikit-learn.
    received = load_fitted_table(directory)
    probabilities = received.predict(test[:3]).probabilities
    print(f"three probabilities of {ADULT_SCHEMA.class_target.classes[1]}: ", end="")
    print(", ".join(f"{p:.2f}" for p in probabilities[:, 1]))
    return {
        "accuracy": accuracy,
        "accuracy_where_sure": float(right[sure].mean()),
        "epsilon": model.privacy_.epsilon,
    }


def main() -> None:
    """Runs the tutorial from the command line."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--records", type=int, help="how many; by default all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), num_records=arguments.records)


if __name__ == "__main__":
    main()
