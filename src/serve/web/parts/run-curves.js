// The curves of a run: which there are, and how they are read.
import { call } from "../api.js";

/** The curves of a run beside its loss: name, title, unit, and how an event's value is found. */
export const METRICS = [
  { name: "tokens_per_s", title: "Speed", unit: "tokens/s", of: "step" },
  { name: "grad_norm", title: "Gradient norm", unit: "", of: "step" },
  { name: "lr", title: "Learning rate", unit: "", of: "step" },
  { name: "mem_used_bytes", title: "Trainer memory", unit: "", of: "step", bytes: true },
  { name: "sm_clock_mhz", title: "GPU clock", unit: "MHz", of: "gpu" },
  { name: "gpu_busy_percent", title: "GPU busy", unit: "%", of: "gpu", field: "busy_percent" },
  { name: "power_watts", title: "GPU power", unit: "W", of: "gpu" },
  { name: "temperature_celsius", title: "GPU temperature", unit: "°C", of: "gpu" },
  { name: "cpu_percent", title: "CPU load", unit: "%", of: "device" },
  {
    name: "mem_pressure_percent",
    title: "Memory pressure",
    unit: "%",
    of: "device",
    field: "mem_pressure_some_percent",
  },
  { name: "head_loss", title: "MTP head, held-out loss", unit: "nats", of: "head" },
];

/** More columns than a screen has; the server merges steps into them. */
const POINTS = 1200;

/** Reads the curves of a run, or of a range of its steps. */
export function readSeries(id, range, signal) {
  const metrics = ["loss_nats", ...METRICS.map((metric) => metric.name)].join(",");
  const query = { metrics, points: POINTS, first_step: range?.[0], last_step: range?.[1] };
  return call("GET /api/v1/runs/{id}/series", { params: { id }, query, signal });
}
