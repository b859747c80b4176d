"""What watching costs: step times of a run without and with watchers, and the processor time of the server.

    watchers.py SPARKTUNE [--watchers N] [--seconds N] [--long STEPS]

Needs Python alone. Trains the fixture's model on the CPU, and alternates between no watchers and N of them: each follows the events
and asks for all curves every two seconds, as the page does. Prints the median step of each part, the share of a core that the server
took, and how long an event took from the trainer to its watchers. With --long it also writes a log of that many steps and prints how
long the first and the next question about its curves take.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures/qwen35/checkpoint"
PARSER = argparse.ArgumentParser()
PARSER.add_argument("sparktune")
PARSER.add_argument("--watchers", type=int, default=50)
PARSER.add_argument("--seconds", type=int, default=30)
PARSER.add_argument("--long", type=int, default=0)


class Api:
    def __init__(self, url):
        self.root, self.token = url.split("/?token=")

    def open(self, path, timeout=30):
        request = urllib.request.Request(self.root + path, headers={"Authorization": "Bearer " + self.token})
        return urllib.request.urlopen(request, timeout=timeout)

    def json(self, path):
        with self.open(path) as answer:
            return json.load(answer)


def processor_s(pid):
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(api, run, end, delays):
    """Follows a run as the page does, until `end` is set."""
    position = api.json(f"/api/v1/runs/{run}")["position"]
    threading.Thread(target=ask_for_curves, args=(api, run, end), daemon=True).start()
    with api.open(f"/api/v1/runs/{run}/events?from={position}") as stream:
        while not end.is_set():
            line = stream.readline()
            if line.startswith(b"data: {\"v\""):
                delays.append(time.time() - json.loads(line[6:])["time_us"] / 1e6)


def ask_for_curves(api, run, end):
    while not end.wait(2):
        with api.open(f"/api/v1/runs/{run}/series?points=1000") as answer:
            answer.read()


def steps_between(events, begin, end):
    found = []
    for line in events.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["kind"] == "step" and begin <= event["time_us"] / 1e6 < end:
            found.append(event["step_ms"])
    return found


def measure_a_run(api, server, runs, arguments):
    run = api.json("/api/v1/runs")["items"][0]["id"]
    events = runs / run / "events/0001.jsonl"
    while api.json(f"/api/v1/runs/{run}")["step"] < 5:
        time.sleep(0.2)
    print(f"{'watchers':>8}  {'steps':>6}  {'median step':>12}  {'server':>14}  event to watcher (median, 99 %)")
    for watchers in [0, arguments.watchers, 0, arguments.watchers, 0]:
        end, delays = threading.Event(), []
        for _ in range(watchers):
            threading.Thread(target=watch, args=(api, run, end, delays), daemon=True).start()
        time.sleep(3)
        delays.clear()
        begun, processor = time.time(), processor_s(server.pid)
        time.sleep(arguments.seconds)
        took, processor = time.time() - begun, processor_s(server.pid) - processor
        end.set()
        steps = steps_between(events, begun, begun + took)
        late = sorted(delays)
        late_text = f"{late[len(late) // 2]:.3f} s, {late[len(late) * 99 // 100]:.3f} s" if late else "–"
        step = f"{statistics.median(steps):.1f} ms" if steps else "–"
        print(f"{watchers:>8}  {len(steps):>6}  {step:>12}  {processor / took:>8.3f} core  {late_text}", flush=True)
        time.sleep(2)


def measure_a_long_log(api, runs, steps):
    run = "20260101T000000Z-long-lora-0001"
    (runs / run / "events").mkdir(parents=True)
    with open(runs / run / "events/0001.jsonl", "w") as log:
        started = {"v": 1, "attempt": 1, "seq": 1, "time_us": 1, "kind": "run_started", "total_steps": steps}
        log.write(json.dumps(started) + "\n")
        for step in range(1, steps + 1):
            log.write(
                f'{{"v":1,"attempt":1,"seq":{step + 1},"time_us":{step * 1000},"kind":"step","step":{step},"loss_nats":{1 + 1 / step:.6f},'
                f'"target_tokens":100,"tokens":200,"lr":0.0002,"grad_norm":1.25,"step_ms":100.0,"tokens_per_s":2000.0,"mem_used_bytes":123456789}}\n'
            )
    print(f"\na log of {steps:,} steps, {(runs / run / 'events/0001.jsonl').stat().st_size / 1e6:.0f} MB")
    questions = [
        "series?points=1000",
        "series?points=1000",
        f"series?points=1000&first_step={steps // 2}&last_step={steps // 2 + 1000}",
        "",
    ]
    for question in questions:
        begun = time.time()
        with api.open(f"/api/v1/runs/{run}/{question}".rstrip("/"), timeout=300) as answer:
            size = len(answer.read())
        print(f"{time.time() - begun:8.3f} s  {size:>9,} bytes  {question or 'the run'}")
    begun = time.time()
    with api.open(f"/api/v1/runs/{run}/events?from=1.{steps}") as stream:
        while not stream.readline().startswith(b"data: {\"v\""):
            pass
    print(f"{time.time() - begun:8.3f} s  to the last event of the stream")


def main():
    arguments = PARSER.parse_args()
    program = os.path.abspath(arguments.sparktune)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        runs = folder / "runs"
        environment = dict(os.environ, HOME=str(folder), XDG_STATE_HOME=str(folder / "state"), HF_HUB_OFFLINE="1")
        data = folder / "train.jsonl"
        chat = '{{"messages":[{{"role":"user","content":"Say {0}."}},{{"role":"assistant","content":"{0}, number {0}."}}]}}\n'
        data.write_text("".join(chat.format(n) for n in range(400)))
        server = subprocess.Popen(
            [program, "serve", "--json", "--port", "0", "--runs-dir", runs], env=environment, stdout=subprocess.PIPE, text=True
        )
        trainer = subprocess.Popen(
            [program, "train", "--non-interactive", "--json", "--device", "cpu", "--model", FIXTURE, "--data", data, "--rank", "4"]
            + ["--pack-length", "512", "--epochs", "10000", "--max-steps", "1000000", "--mtp", "none", "--eval-steps", "100000", "--runs-dir", runs],
            env=environment, stdout=subprocess.DEVNULL,
        )
        try:
            api = Api(json.loads(server.stdout.readline())["url"])
            while not api.json("/api/v1/runs")["items"]:
                time.sleep(0.2)
            measure_a_run(api, server, runs, arguments)
            trainer.send_signal(signal.SIGTERM)
            trainer.wait()
            if arguments.long:
                measure_a_long_log(api, runs, arguments.long)
            print(f"\nmemory of the server: {Path(f'/proc/{server.pid}/status').read_text().split('VmHWM:')[1].split('kB')[0].strip()} kB at most")
        finally:
            for process in (trainer, server):
                process.kill()
                process.wait()


main()
