"""Each rank gives an array, all get the sum: `phalanx run -np 4 python hello_numpy.py`."""

import numpy as np

import phalanx

phalanx.init()
numbers = np.full(4, phalanx.rank(), dtype=np.float32)
total = phalanx.allreduce(numbers, phalanx.Sum)
print(f"rank {phalanx.rank()} of {phalanx.size()}: {total}")
