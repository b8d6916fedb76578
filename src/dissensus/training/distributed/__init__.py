"""Distributed training: coupled members across processes, on ``torch.distributed``.

``torchrun --nproc-per-node 4 -m dissensus train …``, or ``fit(…, distributed=True)`` in a program
that ``torchrun`` starts. Ranks form a mesh of members × data. Each holds some members and, along
the data axis, works on some rows of each batch. In a step a coupled objective exchanges outputs
``[members, batch, outputs]`` and nothing else along members; an independent one exchanges nothing.
Along data, gradients are summed. Losses are those of one process and weights are, to rounding.

What chance decides: members start, batches are ordered and augmented and LDR's members are drawn
exactly as in one process. Random layers (dropout) draw other numbers than in one process, the same
ones in every run with as many ranks.

``ranks`` says who holds what and how ranks exchange tensors, ``exchange`` how outputs are gathered,
``step`` is the training step of a rank, and ``run`` the training loop of ``fit`` around it.
"""
