//! Tests of the wizard, driven by keys, with a backend that answers from a list. Nothing here uses a file,
//! the hub or a device.

mod any_key;
mod screens;
mod walk;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use sparktune_app::data::{DataFound, RejectedPage};
use sparktune_app::draft::Draft;
use sparktune_app::files::{Entry, EntryKind, Listing};
use sparktune_app::findings::{Finding, Severity};
use sparktune_app::listener::{Progress, Unit};
use sparktune_app::machine::MachineFound;
use sparktune_app::model::{Cached, CachedModel, ModelFound};
use sparktune_app::presets::{Preset, Saved};
use sparktune_app::runs::Recent;
use sparktune_base::thinking::{Opening, Thinking};
use sparktune_data::{
    FileReport, Finding as DataFinding, Format, KeptLine, Kind, LengthReport, Pick, Place, Preview,
    Previewed, Rejected, Rejection, RejectionCount, Rendering, Report, Span, TokenCounts, Unit as LengthUnit,
    Wanted,
};
use sparktune_plan::presets::PRESETS;
use sparktune_plan::{
    Answers, Catalog, DataFacts, Gpu, GpuMemory, LengthBucket, MachineFacts, Origin, Plan, Rates,
    TemplateKwargs,
};

use super::request::{Request, Response, Ticket, Ticketed};
use super::{Begin, Outcome, Page, Setup, Wizard};
use crate::screen::picture::{NO_COLOUR, drawn, text};
use crate::screen::{App, Input, Next};

/// A wizard and the two ends of its backend.
struct Rig {
    wizard: Wizard,
    requests: Receiver<Ticketed<Request>>,
    responses: Sender<Ticketed<Response>>,
    /// All requests so far.
    log: Vec<Request>,
    /// The requests that were not answered yet.
    open: Vec<Ticketed<Request>>,
    /// The responses that the backend gives.
    world: World,
}

/// A response that depends on the request.
type By<Q, A> = Box<dyn Fn(&Q) -> Result<A, String>>;

/// The contents of the backend's responses.
struct World {
    machine: Result<MachineFound, String>,
    model: By<str, ModelFound>,
    data: By<Answers, DataFound>,
    listing: By<Path, Listing>,
    started: Result<PathBuf, String>,
    recent: Recent,
}

impl Default for World {
    fn default() -> Self {
        Self {
            machine: Ok(spark()),
            model: Box::new(|name| Ok(model(name))),
            data: Box::new(|_| Ok(data())),
            listing: Box::new(|folder| Ok(listing(folder))),
            started: Ok("/desk/runs/20261120T1700-qwen-lora-1a2b".into()),
            recent: Recent {
                data: vec!["/desk/sets/support.jsonl".into()],
                models: vec!["/models/mine".into()],
            },
        }
    }
}

impl Rig {
    fn new(setup: Setup, world: World) -> Self {
        let (request_sender, requests) = mpsc::channel();
        let (responses, response_receiver) = mpsc::channel();
        let setup = Setup { folder: "/desk".into(), home: Some("/home/me".into()), ..setup };
        let mut rig = Self {
            wizard: Wizard::new(setup, request_sender, response_receiver),
            requests,
            responses,
            log: Vec::new(),
            open: Vec::new(),
            world,
        };
        rig.collect();
        rig
    }

    /// A wizard without answers, after its first requests were answered.
    fn ready() -> Self {
        let mut rig = Self::new(Setup::default(), World::default());
        rig.settle();
        rig
    }

    /// Takes a list of answers, as flags give them.
    fn with(answers: &[(&str, &str)], world: World) -> Self {
        let mut rig = Self::new(Setup { answers: flags(answers), ..Setup::default() }, world);
        rig.settle();
        rig
    }

    fn collect(&mut self) {
        for request in self.requests.try_iter() {
            self.log.push(request.body.clone());
            self.open.push(request);
        }
    }

    fn send(&mut self, ticket: Ticket, body: Response) {
        self.responses.send(Ticketed { ticket, body }).unwrap();
        self.wizard.update(Input::Tick);
        self.collect();
    }

    /// Answers all open requests until there are no new ones.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.collect();
            if self.open.is_empty() {
                return;
            }
            for Ticketed { ticket, body } in std::mem::take(&mut self.open) {
                if let Some(response) = self.answer(&body) {
                    self.send(ticket, response);
                }
            }
        }
        panic!("the wizard sends requests without end");
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let world = &self.world;
        Some(match request {
            Request::Machine => Response::Machine(world.machine.clone()),
            Request::Catalog => Response::Catalog(cache()),
            Request::Recent => Response::Recent(world.recent.clone()),
            Request::Model { name, .. } => Response::Model((world.model)(name).map(Box::new)),
            Request::List { folder } => Response::Listing((world.listing)(folder)),
            Request::Data { answers } => Response::Data((world.data)(answers).map(Box::new)),
            Request::Find { wanted, .. } => {
                let examples = match wanted {
                    Wanted::Line { line: 0, .. } => Vec::new(),
                    Wanted::Line { line, .. } => vec![example(*line)],
                    Wanted::Text(_) => vec![example(7), example(8)],
                };
                Response::Found(Ok(Box::new(Preview { examples, ..Preview::default() })))
            }
            Request::Rejected { offset, limit } => Response::Rejected(Ok(rejected(*offset, *limit))),
            Request::Presets { also } => {
                let file = |name: &String| Preset {
                    name: name.clone(),
                    about: String::new(),
                    toml: Ok("[method]\nrank = 4\n".into()),
                    is_shipped: false,
                };
                let also = also.iter().filter(|name| name.ends_with(".toml")).map(file);
                Response::Presets(presets().into_iter().chain(also).collect())
            }
            Request::SavePreset { name, replace, .. } => {
                let path = PathBuf::from(format!("/home/me/.config/sparktune/presets/{name}.toml"));
                let exists = name == "taken" && !replace;
                Response::Saved(Ok(if exists { Saved::Exists { path } } else { Saved::Written { path } }))
            }
            Request::Demo => Response::Demo(Ok(Box::new(demo()))),
            Request::Start { .. } => Response::Started(world.started.clone()),
            Request::KeepDraft { .. } | Request::ForgetDraft | Request::Cancel { .. } => return None,
        })
    }

    fn press(&mut self, code: KeyCode) -> Next {
        let next = self.wizard.update(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        self.collect();
        next
    }

    fn ctrl(&mut self, c: char) -> Next {
        let next = self.wizard.update(Input::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)));
        self.collect();
        next
    }

    /// Presses each character as a key.
    fn text(&mut self, text: &str) {
        for c in text.chars() {
            self.press(KeyCode::Char(c));
        }
    }

    fn enter(&mut self) -> Next {
        self.press(KeyCode::Enter)
    }

    /// Presses Enter and answers the requests that follow.
    fn take(&mut self) {
        self.enter();
        self.settle();
    }

    /// The text of the screen.
    fn screen(&mut self) -> String {
        text(&drawn(&mut self.wizard, 100, 32, &NO_COLOUR))
    }

    /// Replaces the plan by that of a file, so that the snapshot of a screen does not depend on the planner.
    fn pose(&mut self) {
        let plan = Plan::from_toml(include_str!("plan.toml"), "plan.toml").unwrap();
        self.wizard.state.planner.plan = Some(plan);
    }

    /// Goes to this page, with the plan of the file.
    fn pose_at(&mut self, page: Page) {
        let pages = [Page::Data, Page::Plan, Page::Mtp].into_iter();
        for before in pages.filter(|before| (self.page()..page).contains(before)).collect::<Vec<_>>() {
            self.to(before);
            self.pose();
        }
        self.to(page);
        self.pose();
    }

    #[track_caller]
    fn sees(&mut self, words: &str) {
        let screen = self.screen();
        assert!(screen.contains(words), "{words:?} is not on the screen:\n{screen}");
    }

    #[track_caller]
    fn sees_not(&mut self, words: &str) {
        let screen = self.screen();
        assert!(!screen.contains(words), "{words:?} is on the screen:\n{screen}");
    }

    /// Returns the requests of one kind that were sent since the last call.
    fn open_as<T>(&mut self, pick: impl Fn(&Ticketed<Request>) -> Option<T>) -> Vec<T> {
        self.collect();
        self.open.iter().filter_map(pick).collect()
    }

    fn page(&self) -> Page {
        self.wizard.page
    }

    /// Goes from the first page to this one and takes every recommendation. Model and data have to be given.
    fn to(&mut self, page: Page) {
        for _ in 0..10 {
            if self.page() == page {
                return;
            }
            self.take();
        }
        panic!("{page:?} was not reached:\n{}", self.screen());
    }
}

fn flags(pairs: &[(&str, &str)]) -> Answers {
    let mut answers = Answers::default();
    for (name, value) in pairs {
        answers.set(name, value, Origin::Flag).unwrap();
    }
    answers
}

/// The model and data that a new user would choose.
const GIVEN: &[(&str, &str)] = &[("model", "Qwen/Qwen3.5-2B"), ("data", "sets/train.jsonl")];

fn finding(what: &str, found: &str, severity: Severity, advice: Option<&str>) -> Finding {
    Finding { what: what.into(), found: found.into(), advice: advice.map(Into::into), severity }
}

fn spark() -> MachineFound {
    use Severity::{Good, Note};
    MachineFound {
        findings: vec![
            finding("GPU", "NVIDIA GB10, compute 12.1", Good, None),
            finding("memory", "119 GB of 128 GB available, unified: shared by processor and GPU", Good, None),
            finding("driver", "580.95.05, CUDA up to 13.0", Good, None),
            finding("CUDA headers", "13.0, in /usr/local/cuda/include", Good, None),
            finding("disk", "1.2 TB free for /desk/runs", Good, None),
            finding(
                "other users",
                "python3 (pid 4711) holds 8.2 GB of the GPU",
                Note,
                Some("end it before a large model is trained"),
            ),
        ],
        facts: MachineFacts {
            mem_total_bytes: 128_500_000_000,
            mem_available_bytes: 119_000_000_000,
            cores: 20,
            cpu_speed: None,
            disk_free_bytes: Some(1_200_000_000_000),
            gpus: vec![Gpu {
                name: "NVIDIA GB10".into(),
                memory: GpuMemory::Unified,
                compute_capability: Some((12, 1)),
            }],
            no_gpu_because: None,
            probe: None,
        },
        rates: Rates::default(),
    }
}

/// A laptop without a GPU and with a problem to fix.
fn laptop() -> MachineFound {
    use Severity::{Good, Note, Problem};
    MachineFound {
        findings: vec![
            finding(
                "GPU",
                "none that this build can use",
                Note,
                Some("build it through ./run.sh on a machine with an NVIDIA driver"),
            ),
            finding("memory", "12.4 GB of 16 GB available", Good, None),
            finding("processor", "8 threads usable", Good, None),
            finding(
                "disk",
                "310 MB free for /desk/runs",
                Problem,
                Some(
                    "free some space, or point --runs-dir at a larger disk: a checkpoint of the smallest model takes 1.9 GB",
                ),
            ),
        ],
        facts: MachineFacts {
            mem_total_bytes: 16_000_000_000,
            mem_available_bytes: 12_400_000_000,
            cores: 8,
            cpu_speed: None,
            disk_free_bytes: Some(310_000_000),
            gpus: Vec::new(),
            no_gpu_because: Some("no NVIDIA GPU was found, and this build has no CUDA".into()),
            probe: None,
        },
        rates: Rates::default(),
    }
}

fn cache() -> Vec<CachedModel> {
    let state = |id: &str, cached| CachedModel { id: id.into(), cached };
    vec![
        state("Qwen/Qwen3.5-0.8B", Cached::Whole { bytes: 1_800_000_000 }),
        state("Qwen/Qwen3.5-2B", Cached::Partial { bytes: 1_900_000_000 }),
    ]
}

fn model(name: &str) -> ModelFound {
    let catalog = Catalog::shipped();
    let known = catalog.find(name).unwrap_or(&catalog.models[0]);
    ModelFound {
        name: name.into(),
        revision: None,
        commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
        facts: catalog.model_facts(known),
        missing_bytes: if name.starts_with('/') { 0 } else { 2_500_000_000 },
        notes: Vec::new(),
        unknown_architecture: None,
    }
}

/// Lengths as in chats: many short ones and a long tail.
fn lengths() -> Vec<u32> {
    (1..=24_315u32)
        .map(|i| {
            40 + (i * 7919 % 911) + (i % 97) * (i % 89) / 2 + if i % 400 == 0 { 3000 + i % 2500 } else { 0 }
        })
        .collect()
}

fn place(line: u64) -> Place {
    Place { file: "sets/train.jsonl".into(), line }
}

fn data() -> DataFound {
    let report = LengthReport::new(LengthUnit::Tokens, &mut lengths()).unwrap();
    let first = Rejection {
        kind: Kind::UnknownRole,
        field: "messages[2].role".into(),
        reason: "the role is \"bot\"".into(),
        fix: "Use one of: system, developer, user, assistant, tool, function".into(),
    };
    let facts = DataFacts {
        examples: report.count,
        total_tokens: report.total,
        target_tokens: report.total * 31 / 100,
        p50: report.p50,
        p90: report.p90,
        p99: report.p99,
        max: report.max,
        histogram: report
            .histogram
            .iter()
            .map(|bin| LengthBucket { up_to: bin.to - 1, count: bin.count })
            .collect(),
        thinking: Thinking { inserts_block: true, opening: Opening::Closed },
        ..DataFacts::default()
    };
    DataFound {
        parent: None,
        report: Report {
            files: vec![FileReport {
                name: "sets/train.jsonl".into(),
                eval: false,
                bytes: 48_000_000,
                format: Some(Format::Messages),
                lines: 24_330,
                examples: facts.examples,
                rejected: 12,
                refused: None,
            }],
            lines: 24_330,
            blank_lines: 3,
            examples: facts.examples,
            rejected: 12,
            rejections: vec![RejectionCount {
                kind: Kind::UnknownRole,
                count: 12,
                first: place(812),
                example: first,
                alike: 12,
            }],
            duplicates: DataFinding { examples: 31, occurrences: 31, first: vec![place(77)], note: None },
            tokens: Some(TokenCounts {
                total: facts.total_tokens,
                targets: facts.target_tokens,
                target_share: facts.target_share(),
            }),
            lengths: Some(report),
            ..Report::default()
        },
        facts,
        preview: Preview {
            examples: vec![example(1), example(2)],
            empty_think_block: Some(THINK_BLOCK.into()),
            ..Preview::default()
        },
    }
}

const THINK_BLOCK: &str = "<think>\n\n</think>\n\n";

fn example(line: u64) -> Previewed {
    let question = match line {
        1 => "My order 4711 has not arrived. What can I do?",
        _ => "Grüße! \u{1b}[2J世界 \u{202e}drow",
    };
    let answer = "I am sorry about that. Orders usually take three days; yours was sent yesterday, so it should be with \
                  you tomorrow.\nIf it is not, write again and we send another one.<|im_end|>";
    let before = format!(
        "<|im_start|>system\nYou are the support of a small shop. Be brief and kind.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let under = |think| {
        let pieces = [(before.as_str(), false), (THINK_BLOCK, think), (answer, true), ("\n", false)];
        let span = |(text, trained): (&str, bool)| Span {
            text: text.into(),
            trained,
            special: false,
            left_out: false,
        };
        Rendering { target_tokens: if think { 41 } else { 37 }, spans: pieces.map(span).into() }
    };
    Previewed { place: place(line), pick: Pick::First, tokens: 97, train: under(true), skip: under(false) }
}

fn rejected(offset: u64, limit: usize) -> RejectedPage {
    let total = 230;
    let row = |i: u64| Rejected {
        file: "sets/train.jsonl".into(),
        line: 812 + i * 3,
        not_counted: false,
        rejection: match i % 3 {
            0 => Rejection {
                kind: Kind::UnknownRole,
                field: "messages[2].role".into(),
                reason: "the role is \"bot\"".into(),
                fix: "Use one of: system, developer, user, assistant, tool, function".into(),
            },
            1 => Rejection {
                kind: Kind::InvalidJson,
                field: String::new(),
                reason: "the line ends in the middle of a JSON value".into(),
                fix: "Write one JSON object per line; write line breaks inside a string as \\n".into(),
            },
            _ => Rejection {
                kind: Kind::Empty,
                field: "messages".into(),
                reason: "there are no messages".into(),
                fix: "Remove the example, or give it messages".into(),
            },
        },
        text: format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hello \u{1b}[31m{i}\"}},{{\"role\":\"bot\"}}]}}"
        ),
    };
    let rows = (offset..total).take(limit).map(|i| KeptLine { rejected: row(i), cut: false }).collect();
    RejectedPage { offset, rows, total, file: Some("/desk/runs/.tokens/1a2b/rejected.jsonl".into()) }
}

fn entry(name: impl Into<OsString>, kind: EntryKind, bytes: Option<u64>) -> Entry {
    let name = name.into();
    let is_data = name.to_string_lossy().ends_with(".jsonl");
    Entry { is_model: false, is_data, name, kind, bytes }
}

/// A folder with malicious names.
fn listing(folder: &Path) -> Listing {
    let entries = match folder.to_str() {
        Some("/desk") => vec![
            Entry { is_data: true, ..entry("sets", EntryKind::Folder, None) },
            Entry { is_model: true, ..entry("models", EntryKind::Folder, None) },
            entry("notes.txt", EntryKind::File, Some(1200)),
            entry("chats.jsonl", EntryKind::File, Some(48_000_000)),
            entry(
                "very long name of a data file that nobody can read in a table of eighty columns.jsonl",
                EntryKind::File,
                Some(1),
            ),
            entry("evil\u{1b}[2J\u{202e}txt.jsonl", EntryKind::File, Some(7)),
            entry("世界的数据.jsonl", EntryKind::File, Some(2_000_000_000)),
            entry(OsString::from_vec(b"not\xffutf8.jsonl".to_vec()), EntryKind::File, Some(77)),
            entry("a pipe", EntryKind::Other, None),
        ],
        _ => vec![
            entry("train.jsonl", EntryKind::File, Some(48_000_000)),
            entry("eval.jsonl", EntryKind::File, Some(480_000)),
        ],
    };
    Listing { folder: folder.to_owned(), entries, left_out: 0 }
}

fn presets() -> Vec<Preset> {
    let shipped = PRESETS.iter().map(|preset| Preset {
        name: preset.name.into(),
        about: preset.about.into(),
        toml: Ok(preset.toml.into()),
        is_shipped: true,
    });
    let own = |name: &str, about: &str, toml: Result<&str, &str>| Preset {
        name: name.into(),
        about: about.into(),
        toml: toml.map(Into::into).map_err(Into::into),
        is_shipped: false,
    };
    shipped
        .chain([
            own("small-rank", "LoRA of rank 16, pack length 2048", Ok("[method]\nrank = 16\n")),
            own("broken", "", Err("permission denied")),
        ])
        .collect()
}

fn demo() -> Answers {
    let preset = PRESETS.iter().find(|preset| preset.name == "demo").unwrap();
    let mut answers = preset.answers().unwrap();
    for (name, value) in [("preset", "demo"), ("model", "/demo/model"), ("data", "/demo/train.jsonl")] {
        answers.set(name, value, Origin::Preset).unwrap();
    }
    answers
}
