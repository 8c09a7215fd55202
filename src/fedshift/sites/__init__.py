"""From a folder of site files to a model: read → encode → diagnose → train → record."""

from __future__ import annotations

from fedshift.sites.flow import Examined, Since, Trained, examine, since, train

__all__ = ["Examined", "Since", "Trained", "examine", "since", "train"]
