"""The products of the kernels, compiled for every vector width that this machine can run or
emulate.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from longdraft.ops import native

# and when the kernels changed (tests/changed.py): each test compiles them for half a minute
pytestmark = [pytest.mark.full, pytest.mark.weekly]
SOURCES = Path(native.__file__).parent
PROGRAM = Path(__file__).parents[1] / "support" / "native_products.cpp"
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86 = {
    "_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "_avxvnni": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
    "_avx512": AVX512,
    "_avx512vnni": [*AVX512, "-mavx512vnni"],
    "_avx512bf16": [*AVX512, "-mavx512bf16", "-mavx512vnni"],
}


WIDTHS = [("_avx2", 8), ("_avxvnni", 8), ("_avx512", 16), ("_avx512vnni", 16), ("_avx512bf16", 16)]


def needs(compiler: str, kind: str = "_avx2") -> None:
    if shutil.which(compiler) is None or not native.runs(kind):
        pytest.skip(f"no {compiler} here, or a processor without {native.NEEDS[kind]}")


def build(compiler: str, flags: list[str], folder: Path, sources: Path = SOURCES) -> str:
    """Compiles the program -> its path."""
    words = [
        compiler,
        "-O2",
        "-std=c++17",
        "-Wno-psabi",
        "-Wno-unknown-pragmas",
        f"-I{sources}",
        *flags,
    ]
    program = str(folder / "products")
    done = subprocess.run([*words, str(PROGRAM), "-o", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return program


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_every_row_is_right_and_independent_of_the_others(kind, width, tmp_path):
    needs("g++", kind)
    assert run(build("g++", X86[kind], tmp_path)) == (0, f"vectors of {width} floats\n")


def test_neon_under_an_emulator(tmp_path):
    if platform.machine() == "aarch64":
        assert run(build("g++", [], tmp_path)) == (0, "vectors of 4 floats\n")
    elif shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None:
        pytest.skip(
            "no compiler for Arm, or no emulator: g++-aarch64-linux-gnu and qemu-user have them"
        )
    else:
        program = build("aarch64-linux-gnu-g++", ["-static"], tmp_path)
        assert run("qemu-aarch64", program) == (0, "vectors of 4 floats\n")


def test_clang_compiles_it_without_openmp(tmp_path):
    needs("clang++")
    assert run(build("clang++", X86["_avx2"], tmp_path)) == (0, "vectors of 8 floats\n")


# a fault: its file, the right code, the wrong code, and what the program must call wrong
PLANTED = {
    "a row's sums depend on the rows beside it": (
        "vector_products.h",
        "sum[r][i] *= keep[r];",
        "sum[r][i] = sum[r][i] * keep[r] + (RB > 1 ? 1e-6f : 0);",
        "a row's output alone",
    ),
    "a number of a head is left out": (
        "vector_products.h",
        "int d = 0; d < NUMBERS; d++)",
        "int d = 1; d < NUMBERS; d++)",
        "scores",
    ),
    "a row's softmax has another row's factor": (
        "attention.h",
        "keep[r] = softmax_kept(",
        "keep[r / 2] = softmax_kept(",
        "a row's attention alone",
    ),
    "the numbers of values that are converted once all go to the first place": (
        "vector_products.h",
        "some, out + r * D + d);",
        "some, out + r * D);",
        "a row's output alone",
    ),
    "a half loses its sign": (
        "simd.h",
        "_mm256_cvtph_ps(_mm_loadu_si128(",
        "_mm256_cvtph_ps(_mm_and_si128(_mm_set1_epi16(0x7fff), *",
        "a half",
    ),
    "a half loses its sign, in software": ("simd.h", "| (w & 0x8000) << 16", "", "a half"),
    "an offset of 4 or 5 bits is left out": (
        "packed_weights.h",
        "return fused(code, size, splat(offset[group]));\n        }",
        "return code * size;\n        }",
        "outputs",
    ),
    "an offset of 8 bits is left out": (
        "packed_weights.h",
        "if constexpr (OFFSET) return fused(code, size, splat(offset[group]));",
        "",
        "outputs",
    ),
    "halves of a byte are swapped": (
        "packed_weights.h",
        "nibbles(codes + step % 32, step < 32)",
        "nibbles(codes + step % 32, step >= 32)",
        "outputs",
    ),
    "fifth bits are of the other half": (
        "packed_weights.h",
        "high + step / 32 * 4,",
        "high + 4 - step / 32 * 4,",
        "outputs",
    ),
    "sixth bits are of the next group": (
        "packed_weights.h",
        "k = step / 16;",
        "k = (step / 16 + 1) % 4;",
        "outputs",
    ),
    "a code of 6 bits has no sign": (
        "packed_weights.h",
        "(two & 48)) - 32)",
        "(two & 48)))",
        "outputs",
    ),
    "a code of 5 bits without offset has no sign": (
        "scales.h",
        "(-(1 << (Form::BITS - 1)))",
        "(0)",
        "outputs",
    ),
    "a scale of 6 bits loses its high bits": ("scales.h", "| (w[0] >> 2 & two)", "", "outputs"),
    "a minimum of 6 bits is added": (
        "scales.h",
        "-number(unit[2 * block + 1])",
        "number(unit[2 * block + 1])",
        "outputs",
    ),
    "a scale of 8 bits is that of the group after": (
        "scales.h",
        "(f.scale) + begin + i), number(unit",
        "(f.scale) + begin), number(unit",
        "outputs",
    ),
    "sixteen groups share a unit of scales of 8 bits, whatever their size": (
        "scales.h",
        "SHARE = 256 / Form::GROUP;",
        "SHARE = 16;",
        "outputs",
    ),
    "levels are selected by the other half of a byte": (
        "packed_weights.h",
        "levels_of(codes + step % 32, step < 32,",
        "levels_of(codes + step % 32, step >= 32,",
        "outputs",
    ),
    "a row's scales are those of the row before": (
        "packed_weights.h",
        "group = row * groups + input / GROUP",
        "group = (row & ~1) * groups + input / GROUP",
        "outputs",
    ),
    "a row alone adds in another order": (
        "linear.h",
        "for (int64_t in = 0; in < n; in += Weights::STEP) {\n            for (int j = 0;",
        "for (int64_t in = RB == 1 ? n - Weights::STEP : 0; in >= 0 && in < n;"
        " in += RB == 1 ? -Weights::STEP : Weights::STEP) {\n"
        "            for (int j = 0;",
        "a row's outputs alone",
    ),
    "a code is written to the other half of its byte": (
        "coded_keys.h",
        "low | nearest_integers(x[i + 16 / V] - offset, inverse, 0, 15) << 4",
        "nearest_integers(x[i + 16 / V] - offset, inverse, 0, 15) | low << 4",
        "codes",
    ),
    "the offset of a key's codes is left out": (
        "integer_attention.h",
        "if (BITS == 8) return;\n",
        "return;\n",
        "scores of codes",
    ),
    "the offset of a value's codes is left out": (
        "integer_attention.h",
        "BITS == 8 ? 0.0f : panel.of_offsets(own, n)",
        "0.0f",
        "values of codes",
    ),
    "the halves of a value's byte are swapped": (
        "integer_operands.h",
        "low = both & 15, high = both >> 4;",
        "high = both & 15, low = both >> 4;",
        "values of codes",
    ),
    "the halves of a key's byte are swapped": (
        "integer_operands.h",
        "column[i] >> (4 * half)",
        "column[i] >> (4 * (1 - half))",
        "scores of codes",
    ),
    "the last of an odd number of values is paired with what lies after it": (
        "pair_products.h",
        "both = slot + 1 < n;",
        "both = true;",
        "values",
    ),
    "the offsets of weights in integers are left out": (
        "integer_products.h",
        "sum[i] += a * b;",
        "sum[i] += a * 0;",
        "outputs in integers",
    ),
    "the sign of a weight in integers is lost": (
        "integer_products.h",
        "_mm256_sign_epi8(input, codes)",
        "input",
        "outputs in integers",
    ),
    "fifth bits of weights in integers are of the other half": (
        "integer_products.h",
        "high + 4 * half,",
        "high + 4 - 4 * half,",
        "outputs in integers",
    ),
    "a row's rounded sums depend on the rows beside it": (
        "interleaved.h",
        "fused(all[s][r], splat(size[r]), total[s][r])",
        "fused(all[s][r], splat(size[r] * (RB > 1 ? 1.0001f : 1)), total[s][r])",
        "a row's rounded outputs alone",
    ),
    "offsets of sixteen rows are left out": (
        "interleaved.h",
        "fused(more, splat(sum[p * RB + r]), all[s][r])",
        "fused(more, splat(0), all[s][r])",
        "rounded outputs",
    ),
    "codes of sixteen rows that are signed lose their sign": (
        "interleaved.h",
        "begin[at] = -bias * all",
        "begin[at] = 0",
        "rounded outputs",
    ),
    "sixth bits of sixteen rows are of the next word": (
        "interleaved.h",
        "high + g * 128 + j / 4 * 64",
        "high + g * 128 + (1 - j / 4) * 64",
        "rounded outputs",
    ),
    "minima of sixteen rows are added": (
        "interleaved.h",
        "down = -load(units + 16)",
        "down = load(units + 16)",
        "rounded outputs",
    ),
    "units of sixteen rows are of the next of them": (
        "interleaved.h",
        "(first / 16 + i) / (256 / Form::GROUP) * 16 + e)",
        "(first / 16 + i) / (256 / Form::GROUP) * 16 + (e ^ V / 2))",
        "rounded outputs",
    ),
    "sixteen groups of sixteen rows share a unit, whatever their size": (
        "interleaved.h",
        "(first / 16 + i) / (256 / Form::GROUP) * 16 + e)",
        "(first / 16 + i) / 16 * 16 + e)",
        "rounded outputs",
    ),
    "levels of sixteen rows are those of the code with its highest bit turned": (
        "interleaved.h",
        "Form::LEVELS[i % 16]",
        "Form::LEVELS[i % 16 ^ 8]",
        "rounded outputs",
    ),
    "a level has the offset of 4 bits": (
        "interleaved.h",
        "f.scales == SIX_BITS ? 0 : 1 << (Form::RANGE - 1)",
        "f.scales == SIX_BITS ? 0 : 1 << (Form::BITS - 1)",
        "rounded outputs",
    ),
    "sums of products overflow 16 bits": (
        "interleaved.h",
        "bits == 6 ? 2 :",
        "bits == 6 ? 4 :",
        "rounded outputs",
    ),
    "in pairs, halves of a byte are swapped": (
        "packed_weights.h",
        "step ? _mm512_srli_epi16(bytes, 4) : _mm512_ternary",
        "!step ? _mm512_srli_epi16(bytes, 4) : _mm512_ternary",
        "outputs",
    ),
    "in pairs, both groups have the scale of the first": (
        "packed_weights.h",
        "rounded(weights(group + 1, 0)",
        "rounded(weights(group, 0)",
        "outputs",
    ),
    "in pairs, fifth bits are of the other half": (
        "packed_weights.h",
        "+ block * 8 + step / 8,",
        "+ block * 8 + 4 - step / 8,",
        "outputs",
    ),
    "in pairs, sixth bits are of the next group": (
        "codes.h",
        "_mm512_set_epi64(62, 62, 0, 0, 2, 2, 4, 4)",
        "_mm512_set_epi64(4, 4, 62, 62, 0, 0, 2, 2)",
        "outputs",
    ),
    "in pairs, both halves of a vector are of one group": (
        "packed_weights.h",
        "floats.at(row, input, step + 16))",
        "floats.at(row, input, step))",
        "outputs",
    ),
}
# in a fault's file or name: it is planted in a build with the instructions for pairs of bf16
SOFTWARE = "in software"
PAIRED = "pair"


@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.whole
def test_it_finds_planted_faults(fault, tmp_path):
    name, right, wrong, found = PLANTED[fault]
    kind = "_avx512bf16" if PAIRED in name or PAIRED in fault else "_avx2"
    needs("g++", kind)
    for header in SOURCES.glob("*.h"):
        shutil.copy(header, tmp_path)
    source = (SOURCES / name).read_text()
    assert source.count(right) == 1
    (tmp_path / name).write_text(source.replace(right, wrong))
    flags = [flag for flag in X86[kind] if flag != "-mf16c" or SOFTWARE not in fault]
    status, said = run(build("g++", flags, tmp_path, tmp_path))
    assert status == 1 and said.startswith(found), said
