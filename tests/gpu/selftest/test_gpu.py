"""The parts of tests/gpu that can be tried without a GPU: `python3 -m unittest discover -s tests/gpu/selftest`.

The programs that need PyTorch run on the processor with tiny sizes, where PyTorch can be imported.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
GPU = HERE.parent
ROOT = GPU.parent.parent
sys.path.insert(0, str(GPU))
sys.dont_write_bytecode = True

import harness  # noqa: E402
import judge  # noqa: E402
import machine  # noqa: E402
import results  # noqa: E402
import rows  # noqa: E402
import sanitizer  # noqa: E402
import shapes  # noqa: E402
import table  # noqa: E402

RECORDED = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))

# A stand-in for `sparktune bench --gpu SECTION --output FILE`.
SPARKTUNE = r"""#!/bin/sh
case $3 in
good) printf '{"name": "a", "error": 0.001, "tolerance": 0.01}\n' >"$5" ;;
wrong) printf '{"name": "a", "error": 0.5, "tolerance": 0.01}\n' >"$5" ;;
nothing) ;;
absent) echo 'no CUDA device responds'; exit 77 ;;
broken) echo 'out of memory'; exit 4 ;;
slow)
    printf '{"name": "a", "error": 0.001, "tolerance": 0.01}\n{"name": "b", "err' >"$5"
    sleep 600 & echo $! >"$5.child"
    wait ;;
esac
"""

# A stand-in for the driver: one made-up device whose attributes are their own numbers, times 1024.
LIBCUDA = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int place) { *device = place; return 0; }
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Made-up GPU", size); return device; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 5000000000; return device; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute * 1024; return device; }
"""
NVIDIA_SMI = """#!/bin/sh
echo '580.1, 900, 2000, 3000, 3000, [N/A], 300.00, 50, 0x0000000000000024, Enabled, [N/A], [N/A]'
"""


def of_kind(kind, weight=10):
    return harness.Part(kind, weight, (harness.BINARY, "bench", "--gpu", kind))


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def wait_for(self, condition):
        for _ in range(4000):
            if condition():
                return
            time.sleep(0.05)
        self.fail("it did not happen within minutes")

    def wait_for_the_end_of(self, process):
        def has_ended():
            try:
                return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
            except OSError:
                # The process may be gone while this is read.
                return True

        self.wait_for(has_ended)

    def perform(self, *parts, seconds=60.0, no_device=None):
        binary = self.folder / "sparktune"
        binary.write_text(SPARKTUNE, encoding="utf-8")
        binary.chmod(0o755)
        return list(harness.perform(parts, self.folder, self.folder, no_device, seconds))


class Harness(Folder):
    def test_each_way_to_end_is_told_apart(self):
        kinds = ["good", "wrong", "nothing", "absent", "broken"]
        done = {part["section"]: part for part in self.perform(*map(of_kind, kinds))}
        statuses = {kind: done[kind]["status"] for kind in kinds}
        self.assertEqual(
            statuses, {"good": "done", "wrong": "FAILED", "nothing": "FAILED", "absent": "skipped", "broken": "FAILED"}
        )
        self.assertIn("over 1e-02", done["wrong"]["reason"])
        self.assertEqual(done["absent"]["reason"], "no CUDA device responds")
        self.assertEqual(done["broken"]["reason"], "exit code 4: out of memory")
        self.assertEqual(done["good"]["rows"], [{"name": "a", "error": 0.001, "tolerance": 0.01}])

    def test_what_overruns_is_cut_off_with_its_children_and_keeps_its_whole_rows(self):
        child = self.folder / "0.jsonl.child"
        wait = subprocess.Popen.wait

        # Its time begins only once its child has started, however slow the machine is.
        def wait_for_it(program, timeout=None):
            if timeout is not None:
                self.wait_for(lambda: child.exists() and child.read_text().endswith("\n"))
            return wait(program, timeout)

        with unittest.mock.patch.object(subprocess.Popen, "wait", wait_for_it):
            [cut] = self.perform(of_kind("slow"), seconds=2.0)
        self.assertEqual((cut["status"], len(cut["rows"])), ("CUT OFF", 1))
        self.wait_for_the_end_of(int(child.read_text()))

    def test_time_left_over_goes_to_the_parts_behind(self):
        first, second = self.perform(of_kind("good", 30), of_kind("wrong", 10), seconds=400.0)
        # Less the time that passed before the first one began.
        self.assertAlmostEqual(first["limit_s"], 300, delta=30)
        self.assertGreater(second["limit_s"], 300)

    def test_what_would_not_end_in_time_is_left_out(self):
        with unittest.mock.patch.object(rows.time, "monotonic", return_value=100.0) as now:
            clock = rows.Clock(0.5)
            self.assertTrue(clock.has_room())
            now.return_value += 0.3
            clock.done()
            self.assertFalse(clock.has_room())

    def test_what_takes_minutes_is_only_measured_when_it_is_named(self):
        named = {part.section for part in harness.ON_DEMAND}
        self.assertEqual(named, {"whole", "ladder", "head", "nccl", "sizes"})
        self.assertTrue(named.isdisjoint(part.section for part in harness.PARTS))
        self.assertLessEqual(named, set(harness.SECTIONS))

    def test_parts_of_a_section_share_a_folder_and_the_second_gets_the_rows_of_the_first(self):
        note = "import sys; open(sys.argv[sys.argv.index('--json') + 1], 'w').write('{\"name\": \"' + ' '.join(sys.argv[1:3]) + '\"}')"
        command = (sys.executable, "-c", note)
        parts = [harness.Part("a", 1, (*command, harness.FOLDER, harness.OURS), by=by) for by in ("one", "two")]
        first, second = (part["rows"][0]["name"].split() for part in self.perform(*parts))
        self.assertEqual(first[0], second[0])
        self.assertEqual(second[1], str(self.folder / "0.jsonl"))

    def test_whoever_ends_the_harness_ends_the_part_that_runs(self):
        for path in [*GPU.glob("*.py"), GPU / "run.sh"]:
            shutil.copy(path, self.folder)
        # A section that never ends, on a machine that is said to have a device.
        (self.folder / "machine.py").write_text(
            "import os, sys, time\n"
            "class NoDevice(Exception): pass\n"
            "def device(): return {'name': 'Made-up GPU'}\n"
            "if __name__ == '__main__':\n"
            "    open('child', 'w').write(str(os.getpid())); time.sleep(600)\n",
            encoding="utf-8",
        )
        command = [self.folder / "run.sh", "--json", "r.json", "facts"]
        environment = os.environ | {"PYTHON": sys.executable}
        program = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=subprocess.PIPE, text=True)
        child = self.folder / "child"
        self.wait_for(lambda: child.exists() and child.read_text())
        program.terminate()
        _, said = program.communicate(timeout=200)
        self.assertEqual(program.returncode, 1)
        self.assertIn("interrupted", said)
        self.wait_for_the_end_of(int(child.read_text()))

    def test_without_a_device_everything_is_skipped_with_the_reason(self):
        done = self.perform(*harness.PARTS, no_device="no driver")
        self.assertEqual({(part["status"], part["reason"]) for part in done}, {("skipped", "no driver")})
        self.assertEqual(harness.exit_code(done), 77)

    def test_without_the_program_its_sections_are_skipped_and_say_how_to_make_it(self):
        [done] = harness.perform([of_kind("good")], self.folder, self.folder, None, 10.0)
        self.assertEqual(done["status"], "skipped")
        self.assertIn("build.sh", done["reason"])

    def test_the_exit_code_is_1_as_soon_as_one_part_failed_or_was_cut_off(self):
        code = lambda *statuses: harness.exit_code([{"status": status} for status in statuses])
        self.assertEqual(code("done", "skipped"), 0)
        self.assertEqual(code("skipped", "skipped"), 77)
        self.assertEqual(code("done", "FAILED"), 1)
        self.assertEqual(code("done", "CUT OFF", "skipped"), 1)

    def test_all_sections_fit_into_eight_minutes(self):
        self.assertLessEqual(sum(part.weight for part in harness.PARTS), harness.SECONDS)
        self.assertLess(harness.SECONDS, 8 * 60)


# Seconds that each part is expected to take on a GB10, the slower machine, where only the first of our own compiles: by the audit and by
# the times of NVRTC for one kernel a compilation (kernels/NOTES.md, "Start"). What is left out where time runs short is not in them.
EXPECTED = {
    "facts": 3,
    "ceilings": 15,
    # Compiling 35; the 2B drawn and loaded 25; two methods of 7 steps and their tiles 25; losses on the processor 40.
    "steps": 125,
    "peers": 75,
    # The largest ops at one size; 4 for modules that the driver has kept.
    "kernels": 70,
    "gemm (sparktune)": 38,
    "gemm (vendor)": 20,
    "model": 1,
    "sanitizer": 35,
}


class Rehearsal(unittest.TestCase):
    def test_every_part_fits_its_limit_and_the_headline_comes_first(self):
        began, ends = {}, {}
        now = 0.0
        for place, part in enumerate(harness.PARTS):
            limit = harness.limit_of(harness.PARTS, place, harness.SECONDS - now)
            seconds = EXPECTED[str(part)]
            # The program leaves out what would not end within nine tenths of its limit.
            self.assertLess(seconds, 0.9 * limit, f"{part} has {limit:.0f} s")
            began[part.section], now = now, now + seconds
            ends[part.section] = now
        self.assertLess(ends["peers"], 4 * 60, "the headline is known when half of the time is over")
        self.assertEqual(max(began, key=began.get), "sanitizer")

    def test_if_every_part_compiles_anew_the_headline_still_fits(self):
        now = 0.0
        for place, part in enumerate(harness.PARTS):
            limit = harness.limit_of(harness.PARTS, place, harness.SECONDS - now)
            cold = 30 if part.section in ("kernels", "gemm") and part.by != "vendor" else 0
            now += min(EXPECTED[str(part)] + cold, limit)
            if part.section in ("facts", "ceilings", "steps", "peers"):
                self.assertLessEqual(EXPECTED[str(part)] + cold, limit)
        self.assertLessEqual(now, harness.SECONDS)

    def test_kernels_are_kept_in_one_folder_for_all_parts_unless_the_caller_has_one(self):
        folder = pathlib.Path("/gpu")
        with unittest.mock.patch.dict(os.environ, {"CUDA_CACHE_PATH": "/mine"}):
            self.assertEqual(harness.environment(folder)["CUDA_CACHE_PATH"], "/mine")
            self.assertEqual(harness.environment(folder)["TRITON_CACHE_DIR"], "/mine/triton")
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("CUDA_CACHE_PATH", None)
            self.assertEqual(harness.environment(folder)["CUDA_CACHE_PATH"], "/gpu/.compiled-kernels")
            self.assertEqual(harness.environment(folder)["SPARKTUNE_KERNEL_IMAGES"], "/gpu/.compiled-kernels/images")


class Judge(unittest.TestCase):
    def test_one_wrong_row_or_column_fails_whatever_the_whole_says(self):
        row = {"name": "a", "error": 0.014, "tolerance": 0.02, "worst_row": 17, "worst_row_error": 0.2}
        self.assertIsNone(judge.problem(row))
        self.assertIn("row 17 is 1.4e+00", judge.problem(row | {"worst_row_error": 1.4}))
        self.assertIn("column 3 is not a number", judge.problem(row | {"worst_column": 3, "worst_column_error": None}))

    def test_an_error_that_is_no_number_is_never_passed(self):
        for error in (None, float("nan"), "small", True):
            self.assertIsNotNone(judge.problem({"name": "a", "error": error, "tolerance": 0.01}), error)
        self.assertIsNotNone(judge.problem({"name": "a", "tolerance": 0.01}))
        self.assertIsNone(judge.problem({"name": "a", "error": 0.01, "tolerance": 0.01}))

    def test_a_loss_curve_is_held_against_its_reference_step_by_step(self):
        curve = [12.0, 11.0, 10.0]
        near, far = [12.0, 11.02, 10.0], [12.0, 11.03, 10.0]
        self.assertIsNone(judge.problem({"name": "a", "curve": near, "reference_curve": curve}))
        self.assertIn("0.27%", judge.problem({"name": "a", "curve": far, "reference_curve": curve}))
        for reference in (None, [], curve[:2], [12.0, None, 10.0]):
            self.assertIn("cannot be held", judge.problem({"name": "a", "curve": near, "reference_curve": reference}))

    def test_what_was_compared_with_nothing_is_never_passed(self):
        time_only = {"name": "silu_mul", "time_us": 1.0}
        self.assertIn("compared with nothing", judge.problems("kernels", [time_only])[0])
        self.assertEqual(judge.problems("gemm", [time_only]), [])
        self.assertEqual(judge.problems("kernels", [time_only | {"skipped": "no memory"}]), [])
        self.assertIn("no loss", judge.problems("steps", [{"name": "2B lora", "tokens_per_s": 1.0}])[0])
        curve = {"name": "0.8B lora", "curve": [1.0], "reference_curve": [1.0]}
        self.assertEqual(judge.problems("steps", [{"name": "2B lora", "tokens_per_s": 1.0}, curve]), [])
        self.assertIn("no loss", judge.problems("ladder", [{"name": "2B lora", "tokens_per_s": 1.0}])[0])
        self.assertIn("compared with nothing", judge.problems("whole", [{"name": "loss"}], "transformers")[0])
        self.assertEqual(judge.problems("whole", [{"name": "2B whole", "loss": 12.0}], "sparktune"), [])

    def test_found_errors_fail_and_an_unknown_number_of_them_too(self):
        self.assertIsNone(judge.problem({"name": "memcheck", "errors": 0}))
        self.assertIn("3 errors", judge.problem({"name": "memcheck", "errors": 3}))
        self.assertIn("unknown", judge.problem({"name": "memcheck", "errors": None}))

    def test_the_sanitizers_own_summary_is_read(self):
        self.assertEqual(sanitizer.errors("=========\n========= ERROR SUMMARY: 0 errors\n"), 0)
        self.assertEqual(sanitizer.errors("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n"), 2)
        self.assertIsNone(sanitizer.errors("========= COMPUTE-SANITIZER\n"))


class Rows(Folder):
    def test_rows_are_read_back_without_the_last_one_when_it_is_torn(self):
        path = self.folder / "rows"
        written = rows.Rows(path)
        written.add(name="ä", error=float("nan"))
        written.add(name="b", time_us=1.5)
        whole = path.read_bytes()
        self.assertEqual(rows.read(path), [{"name": "ä", "error": None}, {"name": "b", "time_us": 1.5}])
        path.write_bytes(whole[:-5])
        self.assertEqual(len(rows.read(path)), 1)
        path.write_text('[{"name": "c"}]', encoding="utf-8")
        self.assertEqual(rows.read(path), [{"name": "c"}])
        self.assertEqual(rows.read(self.folder / "absent"), [])


class Tables(unittest.TestCase):
    def test_the_tables_of_a_recorded_run_are_as_recorded(self):
        self.assertEqual(table.rendered(RECORDED), (HERE / "recorded.txt").read_text(encoding="utf-8"))

    def test_floors_are_those_of_the_ceilings_measured_in_the_same_run(self):
        row = {"bytes": 1e9, "flops": 1e12, "floor_us": 7.0}
        self.assertAlmostEqual(table.floor_us(row, 1e12, 1e14), 1e4)
        self.assertAlmostEqual(table.floor_us(row, 1e11, 1e15), 1e4)
        self.assertEqual(table.floor_us(row, None, None), 7.0)

    def test_a_ceiling_that_was_measured_wrong_is_none(self):
        wrong = {"name": "copy", "value": 9e9, "unit": "GB/s", "errors": 1}
        parts = [{"section": "ceilings", "by": "", "rows": [wrong]}]
        self.assertEqual(table.ceilings({"parts": parts}), (None, None))

    def test_a_step_is_predicted_from_the_shares_of_the_same_run_and_from_assumed_ones_where_there_are_none(self):
        copy, matrix = table.ceilings(RECORDED)
        shares = table.shares_measured(RECORDED)
        self.assertAlmostEqual(shares["silu_mul"], 198.180864 / 250)
        # Its error was too large, so its time says nothing.
        self.assertNotIn("gated_delta_rule", shares)
        [one, sixteen] = table.rows_of(RECORDED, "model")
        # 24 × 250 µs as measured, and 305 × (676.5 + 717.5) µs of products that were not, at the share that is assumed.
        expected = 5376 / (24 * 250e-6 + 305 * 1394e-6 / 0.8)
        self.assertAlmostEqual(table.predicted(one, copy, matrix, shares), expected, places=3)
        self.assertAlmostEqual(table.predicted(sixteen, copy, matrix, shares), expected, places=3)
        self.assertAlmostEqual(table.predicted(one, copy, matrix), 5376 / (24 * 198.180864e-6 + 305 * 1394e-6), places=3)
        self.assertIsNone(table.predicted(one, None, matrix, shares))

    def test_without_ceilings_only_the_promised_device_is_predicted(self):
        parts = [part for part in RECORDED["parts"] if part["section"] != "ceilings"]
        head, [cells, _] = table.model(RECORDED | {"parts": parts})
        told = dict(zip(head, cells))
        self.assertEqual((told["predicted"], told["GB10 at these shares"]), (table.NONE, table.NONE))
        self.assertEqual((told["tokens/s measured"], told["GB10 at assumed shares"]), ("10,000", "5,600"))

    def test_a_pipe_in_a_cell_does_not_end_it(self):
        self.assertIn("a\\|b", table.markdown(["x"], [["a|b"]]))


class Results(unittest.TestCase):
    PAGE = f"# Measured times\n\nWords.\n\n{results.NOTHING_YET}no kernel has run.\n\n{results.NEWEST}"

    def block(self, page):
        return tomllib.loads(page.split("```toml\n")[1].split("```")[0])

    def test_the_first_run_takes_the_place_of_not_measured_yet(self):
        page = results.added(self.PAGE, RECORDED)
        self.assertNotIn(results.NOTHING_YET, page)
        self.assertIn("Words.", page)
        [found] = self.block(page)["machine"]
        self.assertEqual((found["device"], found["copy_gb_per_s"], found["bf16_tflops"]), ("Made-up GPU", 1000.0, 200.0))
        self.assertEqual(found["probe"], {"bf16_tflops": 160.0, "copy_gb_per_s": 900.0})
        self.assertEqual(
            found["training"],
            [{"size": "2B", "method": "lora", "tokens_per_s": 10000.0, "flops_per_token": 8.98e9}],
        )

    def test_the_page_of_a_recorded_run_is_as_recorded(self):
        # The plan's test reads the same file.
        self.assertEqual(results.added(self.PAGE, RECORDED), (HERE / "recorded.md").read_text(encoding="utf-8"))

    def test_a_later_run_stands_before_the_earlier_one(self):
        once = results.added(self.PAGE, RECORDED)
        later = results.added(once, RECORDED | {"date": "2026-02-03T00:00:00Z"})
        self.assertLess(later.index("2026-02-03"), later.index("2026-01-02"))
        self.assertTrue(later.endswith(once[once.index("## Made-up GPU") :]))

    def test_a_speed_whose_loss_was_wrong_does_not_get_into_the_plan(self):
        wrong = json.loads(json.dumps(RECORDED))
        [curve] = [row for row in table.rows_of(wrong, "steps") if "curve" in row]
        curve["curve"] = [1.0] * 30
        self.assertEqual(results.toml_block(wrong), "")

    def test_the_page_of_the_repository_takes_a_run(self):
        page = (ROOT / "kernels" / "RESULTS.md").read_text(encoding="utf-8")
        self.assertIn("## Made-up GPU", results.added(page, RECORDED))


class Shapes(unittest.TestCase):
    def test_all_five_sizes_have_their_products_in_every_layout_and_none_twice(self):
        products = shapes.products()
        keys = [(row["m"], row["n"], row["k"], row["layout"]) for row in products]
        self.assertEqual(len(keys), len(set(keys)))
        for size in ("0.8B", "2B", "4B", "9B", "27B"):
            layouts = {row["layout"] for row in products if row["name"].startswith(size + " ")}
            self.assertEqual(layouts, {"NN", "NT", "TN"}, size)


class Build(Folder):
    def build(self, size):
        """Runs build.sh with a stand-in for cargo, whose program is `size` bytes larger than /bin/true."""
        tools, target = self.folder / "bin", self.folder / "target"
        (target / "release").mkdir(parents=True)
        tools.mkdir()
        program = target / "release" / "sparktune"
        (tools / "cargo").write_text(f'#!/bin/sh\necho "$@" >"{self.folder}/asked"\n', encoding="utf-8")
        # strip would take what is appended away, so it stands still; random bytes are not packed smaller.
        (tools / "strip").write_text("#!/bin/sh\n", encoding="utf-8")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        shutil.copy("/bin/true", program)
        with open(program, "ab") as file:
            file.write(os.urandom(size))
        environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CARGO_TARGET_DIR": str(target),
            # Without the network.
            "PIP_NO_INDEX": "1",
        }
        return subprocess.run(
            [GPU / "build.sh", self.folder / "out"], env=environment, capture_output=True, text=True, check=False
        )

    def test_the_folder_holds_what_a_bare_machine_needs_and_runs_there(self):
        done = self.build(0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--features cuda", (self.folder / "asked").read_text())
        out = self.folder / "out"
        names = {path.name for path in out.iterdir()}
        python = {path.name for path in GPU.glob("*.py")}
        # The peers' packages are there where PyPI could be reached.
        self.assertEqual(names - {"packages"}, python | {"sparktune.gz", "run.sh", "shapes.json", "COMMIT", "presets"})
        if "packages" in names:
            self.assertTrue((out / "packages" / "fla" / "__init__.py").is_file())
        # Away from the checkout, as on another machine.
        elsewhere = self.folder / "elsewhere"
        shutil.move(out, elsewhere)
        environment = os.environ | {"PYTHON": sys.executable}
        ran = subprocess.run(
            [elsewhere / "run.sh", "--json", self.folder / "r.json", "facts"], env=environment, capture_output=True, check=False
        )
        self.assertIn(ran.returncode, (0, 77), ran.stderr)
        commit = (elsewhere / "COMMIT").read_text().strip()
        self.assertEqual(json.loads((self.folder / "r.json").read_text())["commit"], commit)
        subprocess.run([elsewhere / "sparktune"], check=True)

    def test_over_60_mb_it_fails(self):
        done = self.build(61_000_000)
        self.assertEqual(done.returncode, 1)
        self.assertIn("more than 60 MB", done.stderr)


class OnThisMachine(Folder):
    def run_sh(self, *arguments, **environment):
        command = [GPU / "run.sh", *arguments]
        environment = os.environ | {"PYTHON": sys.executable} | environment
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def test_without_a_gpu_every_section_says_why_it_was_skipped(self):
        try:
            self.skipTest(f"there is a GPU: {machine.device()['name']}")
        except machine.NoDevice as reason:
            done = self.run_sh()
            self.assertEqual(done.returncode, 77, done.stderr)
            for part in harness.PARTS:
                self.assertRegex(done.stdout, rf"(?m)^{part.section}.* skipped .*{reason}$")
            [file] = self.folder.glob("sparktune-gpu-*.json")
            self.assertEqual(len(json.loads(file.read_text())["parts"]), len(harness.PARTS))

    def test_with_a_driver_the_device_is_described_and_what_is_missing_is_named(self):
        if not shutil.which("cc"):
            self.skipTest("there is no C compiler to make a driver with")
        build = ["cc", "-shared", "-fPIC", "-o", self.folder / "libcuda.so.1", "-x", "c", "-"]
        subprocess.run(build, input=LIBCUDA, text=True, check=True)
        smi = self.folder / "nvidia-smi"
        smi.write_text(NVIDIA_SMI, encoding="utf-8")
        smi.chmod(0o755)
        path = f"{self.folder}:{os.environ['PATH']}"
        done = self.run_sh("facts", "kernels", "--json", "r.json", LD_LIBRARY_PATH=str(self.folder), PATH=path)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads((self.folder / "r.json").read_text(encoding="utf-8"))
        told = {row["name"]: row["value"] for row in found["parts"][0]["rows"]}
        self.assertEqual(told["device"], "Made-up GPU (first of 2)")
        self.assertEqual(told["driver"], "580.1, CUDA up to 13.2")
        self.assertEqual(told["shared memory"], "97 KB a block; L2 0 MB")
        self.assertEqual(told["clocks at rest"], "SM 900 of 2000 MHz, held down by the power limit and heat (software)")
        self.assertEqual((told["power limit"], told["device memory"]), ("300.00 W", "5.0 GB, shared with the processor"))
        self.assertRegex(done.stdout, "(?m)^kernels +skipped .*build.sh makes the folder")

    def test_wrong_words_are_refused(self):
        self.assertEqual(self.run_sh("kernel").returncode, 2)
        nowhere = self.run_sh("--json", "nowhere/r.json")
        self.assertEqual(nowhere.returncode, 2)
        self.assertIn("nowhere/r.json cannot be written", nowhere.stderr)
        self.assertEqual(self.run_sh(PYTHON="/bin/false").returncode, 77)

    def tiny(self, script):
        if importlib.util.find_spec("torch") is None:
            self.skipTest(f"torch is not importable by {sys.executable}")
        path = self.folder / script
        command = [sys.executable, GPU / f"{script}.py", "--json", path, "--tiny"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == rows.SKIPPED:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        return rows.read(path)

    def test_ceilings_and_products_of_the_vendor_are_right_on_the_processor(self):
        for script, count in (("ceilings", 2), ("gemm_vendor", 3)):
            found = self.tiny(script)
            self.assertEqual(len(found), count)
            self.assertEqual([judge.problem(row) for row in found], [None] * count)

    def test_peers_train_both_ways_on_the_processor(self):
        found = [row for row in self.tiny("peers") if "skipped" not in row]
        self.assertEqual([row["method"] for row in found], ["lora", "full"])
        for row in found:
            # Random weights know nothing: the loss is about ln of the vocabulary.
            self.assertAlmostEqual(row["loss"], 6.24, delta=0.5)
            self.assertGreater(row["tokens_per_s"], 0)


if __name__ == "__main__":
    unittest.main()
