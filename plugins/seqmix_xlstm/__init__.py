"""xLSTM (Beck et al. 2024): the cells mLSTM and sLSTM, their blocks as mixers, both model families.

The mixers are reached by name: ``"mlstm"``, ``"mlstm_up"``, ``"slstm"``.
"""

__all__: list[str] = []
