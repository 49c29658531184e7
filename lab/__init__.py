"""The lab: what makes and measures the product, beside it and never part of it.

Commands, in the repository's root after `make dev`:

    python -m lab.training --config masks --out RUN      a bundled model, from scenes and photos
    python -m lab.bench --quick                          the model beside other ways to run it
    python -m lab.risk_fit                               the risk, fitted on rendered drives
    python -m lab.examples DGP_SCENE                     the drives that the product carries
    python -m lab.scenes.gallery FILE                    pictures of rendered scenes beside masks
    python -m lab.tools.NAME                             measuring and recording scripts
"""
