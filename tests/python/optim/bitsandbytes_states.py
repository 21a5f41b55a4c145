# SPDX-License-Identifier: Apache-2.0
"""States that bitsandbytes 0.50.2 saved on the CPU after three steps of its AdamW8bit and Lion8bit (lr 1e-2,
min_8bit_size 4), of a tensor in 8 bits and one in 32, and how far the next step moved each from zeros."""

from __future__ import annotations

import torch
from fused_runs import randn
from torch import Tensor, nn

SHAPES = ((300,), (3,))


def give_gradients(parameters: list[nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(parameters):
        parameter.grad = randn(10 * number + 10 + step, parameter.shape)
    parameters[0].grad = parameters[0].grad * 0.1 - 0.2 * (torch.arange(300) < 256)


def _floats(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.float32)


def _codes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


ADAMW8BIT = {
    0: {
        "state1": _codes(
            "15211914160c132e101c3814201c0921212e18141b15252e08322d1f2813151b242c07200d100d25171a2b28241f0f282025"
            "1e102c3a2a172c1907131329131c0d222416291a1e1f220d2c222b1a201d231d1423170a1c13282029191c351202261d181f"
            "18001b102f160f0d173313152a1723081f072a1f1b1010271f26171b1c1e302c1225291923152a39280b1a1726131126301e"
            "12151b1c362e12172c2a26260e1b1c241f2f281a1c142329212702230925160c291c362a1d1c1d2b042a131e10150f10131e"
            "1c2010153127221e2d152d1a0e18361c0b0c211f101d2f1b1a22152f1a0f12100d0a1b151c0c16211911270b171e3a262a18"
            "2a211b11151f6ed53e3e2cd3dbdebe190c4ad8cab9c9c5fa1d3bc35a00c63f0a0b3dddd12c36c12c55c0c6d6c2c62c2b3136"
        ),
        "state2": _codes(
            "b69dadbcb3d3bf91c3a789baa4a4dd9b9887b7c1aeb79685e783839d97bcbaae9584eb9cdec7d992b9b2868bb99cc7a19eae"
            "a2f7865795b287aae0bdbd8cc2b5d1a296b496bbb79c9dec88a089b7b7a296a1bb9ab0e4a4cc8e9b8faccb6ec7ff8ea2afa1"
            "b6feaec28cbcccedb881ceb98cb299efaef588aca9d4d48ca48eb3b3a8a58092bf918eab96be867b8cd4a8af91c1cb91809e"
            "c1dbb5a85f83c3b38e949692ccada49e9c8690b4abba968d9a98fb98dc98c5e98fcd6c86a6aca38bfd9bc0a5cdb6c7c7bda1"
            "a49bc9b77f96979f87c293aad0ba7eb0d7d4abb1ccca80a5bc9bb982aadac3c9d3dab2bebed2be9cb1cc8dd1afa059908cb9"
            "889dafc4bf9d97fe7785b58f9e933ea1a49081ff9a9696b0977e8f36bb804fb1b58589828c508baca585c081a183a186859c"
        ),
        "absmax1": _floats("f49ac43d5444103d"),
        "absmax2": _floats("8596c73921b2d338"),
    },
    1: {
        "state1": _floats("03be763c604faebd0015723c"),
        "state2": _floats("0f76253b8e2eed3958e7ff3a"),
    },
}
ADAMW8BIT_MOVES = (
    _floats(
        "8e621d3c496cc33be3d7193c09181b3c13a31a3cc3b2143c3b271c3c50e3f73b44e4203cc7cc183c7b1d103cf74a163c24b4"
        "1e3c1116033cddda1b3c6bd1203c80fe173c72111a3cdf42153ce87e1a3c90c6043c261e073c0f8f1d3c6a46133c35931e3c"
        "e6a61a3c9e53a53be90a2e3b757d57bb54281539"
    ),  # every tenth
    _floats("2d071b3b49e81b3b4524b63a"),
)
LION8BIT = {
    0: {
        "state1": _codes(
            "14211813160b1330101d37151f1c0820222f19151c15252d0a312d202913151c252c051f0c0f0b2416182b27251f0f261f23"
            "1e132b3a29162c1a08121428141b0e20231728181d1f220b2c242b19221e241d162318091c1328212a191b341302261d1720"
            "17001c1130150e0e183312152c1724071f06291d1b0f12281e26181a1c1f302d1327291a22152b38280c1a1725121026301e"
            "13131e1d372e11172b2927240e1b1b241f2e28191d142329202601220924170c2819362a1d1b1c2a0429141e0f150e10141d"
            "1d200f143028221e2b142c1a0f18351a0c0c231e111a2f1c1921162e190d11100c0b1a141b0c17211911270b171e39272a17"
            "2a221a11161e5ccf3d4230d2dddebf170a45d9c6adc8c2fa1d3cc45400c63e0b0b3ddfd02e37c02d5ac2c4d6bdc928292f3a"
        ),
        "absmax1": _floats("5dba2b3c1078763b"),
    },
    1: {
        "state1": _floats("b601ebb9722e10bc8119353b"),
    },
}
LION8BIT_MOVES = (
    _floats(
        "0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7"
        "233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c0ad7233c"
        "0ad7233c0ad7233c0ad7233c0ad723bc0ad723bc"
    ),  # every tenth
    _floats("0ad7233c0ad723bc0ad7233c"),
)
