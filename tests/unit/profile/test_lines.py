"""Lines of oneDNN and MKL are read, those of every version, and none is lost in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.errors import ProfileError
from bestof.profile import from_log, read_log
from bestof.profile.log import read_lines
from bestof.profile.verbose.work import bytes_of, flops_of

# Output of oneDNN: 2.2 to 3.2 from PyPI's wheels of `onednn-cpu-gomp`, 3.12 from PyTorch 2.13.
LOGS = sorted((Path(__file__).parent / "logs").glob("*.log"))

# One call as several versions print it: 3.12 as in PyTorch 2.13, the older ones as in the
# documentation of oneDNN at the time.
CONVOLUTIONS = {
    "3.12": "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src:f32:a:blocked:abcd::f0 wei:f32:a:blocked:Acdb16a::f0 bia:f32:a:blocked:a::f0 "
    "dst:f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,4.5",
    "3.3": "onednn_verbose,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src_f32:a:blocked:abcd::f0 wei_f32:a:blocked:Acdb16a::f0 bia_f32:a:blocked:a::f0 "
    "dst_f32:a:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,4.5",
    "2.7": "onednn_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src_f32::blocked:abcd:f0 wei_f32::blocked:Acdb16a:f0 bia_f32::blocked:a:f0 "
    "dst_f32::blocked:aBcd16b:f0,attr-scratchpad:user,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,4.5",
    "1.6": "dnnl_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src_f32::blocked:abcd:f0 wei_f32::blocked:Acdb16a:f0 bia_f32::blocked:a:f0 "
    "dst_f32::blocked:aBcd16b:f0,,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,4.5",
    "1.0": "mkldnn_verbose,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src_f32::blocked:abcd:f0 wei_f32::blocked:Acdb16a:f0 bia_f32::blocked:a:f0 "
    "dst_f32::blocked:aBcd16b:f0,,alg:convolution_direct,"
    "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,4.5",
}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_line_of_a_real_log_is_understood(path: Path) -> None:
    log = read_log(path)
    assert log.unknown == 0, log.examples
    executed = [text for text in path.read_text().splitlines() if ",exec," in text]
    assert sum(line.source == "onednn" for line in log.lines) == len(executed) >= 3
    assert {"reorder", "convolution"} <= {line.primitive for line in log.lines}
    assert all((line.began is not None) == ("timestamp" in path.stem) for line in log.lines) or (
        path.stem == "torch-2.13"
    )
    assert all(flops_of(line) > 0 for line in log.lines if line.primitive == "matmul")
    assert all(bytes_of(line) > 0 for line in log.lines)


def test_refusals_of_a_real_log_are_kept() -> None:
    log = read_log(next(path for path in LOGS if path.stem == "torch-2.13"))
    assert any("unsupported format tag" in text for text in log.refusals)
    assert not any("1795362494" in text for text in log.refusals)


@pytest.mark.parametrize("version", CONVOLUTIONS)
def test_a_convolution_is_read_from_every_version(version: str) -> None:
    log = read_lines([CONVOLUTIONS[version]])
    assert log.unknown == 0, log.examples
    (line,) = log.lines
    assert (line.primitive, line.implementation) == ("convolution", "jit:avx512_core")
    assert line.direction == "forward_training"
    assert line.layout == "abcd Acdb16a aBcd16b"
    assert line.dtype == "f32"
    assert line.seconds == pytest.approx(4.5e-3)
    assert line.problem == "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0"
    assert line.began is None


def test_a_template_says_where_the_fields_stand() -> None:
    # The fields in an order that no version has: only a reader of the template finds them.
    log = read_lines(
        [
            "onednn_verbose,v1,primitive,info,template:operation,exec_time,engine,primitive,"
            "implementation,prop_kind,memory_descriptors,attributes,auxiliary,problem_desc",
            "onednn_verbose,v1,primitive,exec,7.25,cpu,reorder,jit:uni,undef,"
            "src:f32::blocked:ab::f0 dst:bf16::blocked:ba::f0,,,8x16",
        ]
    )
    (line,) = log.lines
    assert line.seconds == pytest.approx(7.25e-3)
    assert (line.primitive, line.direction, line.dtype) == ("reorder", "", "f32:bf16")


def test_a_template_without_a_field_leaves_the_common_order() -> None:
    template = "onednn_verbose,v1,primitive,info,template:operation,engine,primitive"
    log = read_lines(
        [template, *CONVOLUTIONS.values(), "onednn_verbose,v1,primitive,exec,cpu,convolution"]
    )
    assert len(log.lines) == len(CONVOLUTIONS)
    assert log.unknown == 1


@pytest.mark.parametrize("time", ["1e999", "1e16", "9" * 400])
def test_an_impossible_time_is_not_understood(time: str) -> None:
    texts = [f"{one.rpartition(',')[0]},{time}" for one in CONVOLUTIONS.values()]
    texts += [CONVOLUTIONS["3.12"].replace("v1,", f"v1,{time},")]
    texts += [f"MKL_VERBOSE SGEMM(T,N,10,4,46,0x7,0x5,46,0x5,46,0x7,0x5,10) {'9' * 400}us CNR:OFF"]
    log = read_lines(texts)
    assert log.lines == []
    assert log.unknown == len(texts)


def test_a_timestamp_is_milliseconds_since_the_epoch() -> None:
    text = CONVOLUTIONS["3.12"].replace("v1,", "v1,1795361177959.278076,")
    log = read_lines([text, CONVOLUTIONS["2.7"].replace("exec", "1795361177959.278076,exec")])
    assert [line.began for line in log.lines] == [pytest.approx(1795361177.959278076)] * 2


def test_a_product_of_mkl_is_read() -> None:
    log = read_lines(
        [
            "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 "
            "architecture",
            "MKL_VERBOSE SGEMM(T,N,10,4,4608,0x7ff,0x55b,4608,0x55c,4608,0x7fe,0x55d,10) 185.43us "
            "CNR:OFF Dyn:1",
        ]
    )
    (line,) = log.lines
    assert (line.source, line.primitive, line.problem) == ("mkl", "matmul", "m10n4k4608")
    assert line.seconds == pytest.approx(185.43e-6)
    assert log.unknown == 0


PRODUCT = "SGEMM(T,N,10,4,4608,0x7ff,0x55b,4608,0x55c,4608,0x7fe,0x55d,10)"


@pytest.mark.parametrize("version", CONVOLUTIONS)
@pytest.mark.parametrize(("time", "milliseconds"), [("4,5", 4.5), ("0,00097", 9.7e-4), ("12", 12)])
def test_decimal_commas_are_read(version: str, time: str, milliseconds: float) -> None:
    whole = CONVOLUTIONS[version].rpartition(",")[0]
    stamped = whole.replace("verbose,v1,", "verbose,v1,1795361177959,278076,")
    if stamped == whole:
        stamped = whole.replace("verbose,", "verbose,1795361177959,278076,")
    log = read_lines([f"{whole},{time}", f"{stamped},{time}"])
    assert log.unknown == 0, log.examples
    assert [one.seconds for one in log.lines] == [pytest.approx(milliseconds / 1e3)] * 2
    assert {one.problem for one in log.lines} == {
        "mb4_ic3oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0"
    }
    assert log.lines[1].began == pytest.approx(1795361177959.278076 / 1e3)


def test_a_decimal_comma_is_told_from_a_problem_that_is_a_number() -> None:
    begin = "onednn_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_f32::blocked:a"
    log = read_lines([f"{begin},,,16,4", f"{begin},,,16,4,5"])
    assert [(one.problem, one.seconds) for one in log.lines] == [
        ("16", pytest.approx(4e-3)),
        ("16", pytest.approx(4.5e-3)),
    ]
    refused = "onednn_verbose,v1,{},primitive,create:dispatch,convolution,unsupported"
    log = read_lines([refused.format("1795361177959,25"), refused.format("1795361177960.5")])
    assert len(set(log.refusals)) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (f"MKL_VERBOSE {PRODUCT} 185,43us CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:8", 185.43e-6),
        (f"MKL_VERBOSE {PRODUCT} 1.07m", 1.07e-3),
        (f"MKL_VERBOSE {PRODUCT} 1.07ms CNR:O", 1.07e-3),
        (f"MKL_VERBOSE {PRODUCT} 2s", 2.0),
        (f"MKL_VERBOSE {PRODUCT} 2n", 2e-9),
        (f"\x1b[1;34mMKL_VERBOSE\x1b[0m {PRODUCT} \x1b[0;32m185.43us\x1b[0m CNR:OFF", 185.43e-6),
        (f"\x1b[32mworker 1 |\x1b[0m MKL_VERBOSE {PRODUCT} 3us\x1b[", 3e-6),
        (f"\x1b]0;title\x07MKL_VERBOSE \x1b[31m{PRODUCT}\x1b[39;49m 3us \x1b[K", 3e-6),
    ],
)
def test_lines_of_mkl_with_commas_colours_or_a_cut_end_are_read(text: str, seconds: float) -> None:
    log = read_lines([text])
    assert log.unknown == 0, log.examples
    (line,) = log.lines
    assert (line.problem, line.seconds) == ("m10n4k4608", pytest.approx(seconds))


@pytest.mark.parametrize("version", CONVOLUTIONS)
def test_colours_are_left_out_of_every_version(version: str) -> None:
    words = CONVOLUTIONS[version].split(",")
    log = read_lines([",".join(f"\x1b[{30 + n % 8}m{one}\x1b[0m" for n, one in enumerate(words))])
    assert log.unknown == 0, log.examples
    (line,) = log.lines
    assert (line.layout, line.seconds) == ("abcd Acdb16a aBcd16b", pytest.approx(4.5e-3))


MKL_2020 = (
    "MKL_VERBOSE Intel(R) MKL 2020.0 Update 4 Product build 20200917 for Intel(R) 64 architecture "
    "Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors, Lnx 2.30GHz lp64 "
    "gnu_thread",
    f"MKL_VERBOSE {PRODUCT} 1.07ms CNR:OFF Dyn:1 FastMM:1 TID:0  NThr:8",
)


def test_a_log_of_mkl_2020_is_read_wherever_it_is_cut() -> None:
    header, call = MKL_2020
    for length in range(len("MKL_VERBOSE "), len(header)):
        log = read_lines([call, header[:length]])
        assert (len(log.lines), log.unknown, len(log.information)) == (1, 0, 1), header[:length]
    known = call.index(" 1.07m") + len(" 1.07m")
    for length in range(len("MKL_VERBOSE S"), len(call)):
        log = read_lines([header, call[:length]])
        assert (len(log.lines), log.unknown) == ((1, 0) if length >= known else (0, 1)), length
        assert all(one.seconds == pytest.approx(1.07e-3) for one in log.lines)


def test_truncated_and_interleaved_lines_are_counted_and_shown() -> None:
    whole = CONVOLUTIONS["3.12"]
    log = read_lines([whole[:90], whole[:200] + whole, "loss 0.3" + whole, "loss 0.2"])
    assert len(log.lines) == 2
    assert log.unknown == 2
    assert log.examples == [whole[:90], whole[:200]]
    assert log.foreign == 1


def test_a_log_that_mixes_versions_is_read() -> None:
    template = (
        "onednn_verbose,info,prim_template:timestamp,operation,engine,primitive,implementation,"
        "prop_kind,memory_descriptors,attributes,auxiliary,problem_desc,exec_time"
    )
    log = read_lines([template, *CONVOLUTIONS.values()])
    assert len(log.lines) == len(CONVOLUTIONS)
    assert log.unknown == 0


def test_another_engine_is_distinguished_from_the_processor() -> None:
    log = read_lines([CONVOLUTIONS["3.12"].replace(",cpu,", ",gpu,")])
    assert log.lines[0].engine == "gpu"


def test_a_refusal_is_kept() -> None:
    text = (
        "onednn_verbose,v1,primitive,create:dispatch,convolution,cpu,convolution,brg_conv,undef,"
        "unsupported isa"
    )
    log = read_lines([text])
    assert log.refusals == [text]
    assert log.unknown == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"hello\n", "no executed primitive"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_no_log_is_refused(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "verbose.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match=words):
        read_log(path)


def test_bytes_that_are_not_utf8_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "verbose.log"
    path.write_bytes(b"\xff\xfe\n" + CONVOLUTIONS["3.12"].encode() + b"\n")
    assert len(read_log(path).lines) == 1


def test_lines_of_a_gpu_are_counted_and_told() -> None:
    texts = [CONVOLUTIONS["3.12"], CONVOLUTIONS["3.12"].replace("exec,cpu", "exec,gpu")]
    found = from_log("log", read_lines(texts))
    assert found.lines == 2
    (note,) = found.notes
    assert note.startswith("1 of 2 lines ran on gpu, not on the processor")
