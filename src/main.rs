//! The program: parse the command line, dispatch to the command, and turn what went wrong into an exit code
//! and a message.

mod cli;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;
use sparktune_base::set_program_name;
use sparktune_commands::request::{Given, RunName, Style};
use sparktune_commands::{self as commands, crash};
use sparktune_tui::output;

use crate::cli::{CheckArgs, Cli, Command, RunsAction};

/// Tensors of many megabytes come and go in every layer: the system's allocator gives each back at once and
/// faults it in again, which cost full fine-tuning up to a third of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The variable by which `run.sh` says how it was called.
const CALLED_AS: &str = "SPARKTUNE_COMMAND";

fn main() -> ExitCode {
    #[cfg(feature = "serve")]
    sparktune_serve::end_with_server();
    if cfg!(feature = "cuda") {
        commands::find_cuda_toolkit();
    }
    set_program_name(std::env::var_os(CALLED_AS));
    if std::env::args_os().len() == 1 && !output::can_ask() {
        return commands::welcome().into();
    }
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refused) => {
            // Help that is not read to its end is no failure.
            let _ = refused.print();
            return if refused.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    crash::install();
    match catch_unwind(AssertUnwindSafe(|| run(cli))) {
        Ok(Ok(exit)) => exit,
        Ok(Err(failure)) => output::report(&failure),
        Err(_) => crash::report_panic(),
    }
    .into()
}

/// Carries a command out.
fn run(cli: Cli) -> Result<Exit, Failure> {
    let on_end = match &cli.command {
        None => &cli.train.on_end.on_end,
        Some(Command::Train(args)) => &args.on_end.on_end,
        Some(Command::Resume(args)) => &args.on_end.on_end,
        Some(Command::Head(args)) => &args.on_end.on_end,
        Some(_) => &None,
    };
    let program = &Program::current(cfg!(feature = "cuda")).with_on_end(on_end.clone());
    let style = cli.style.style();
    let runs_dir = cli.train.settings.0.runs_dir.clone().map(|answer| answer.value);
    let named = |name: cli::RunName| RunName { run: name.run, runs_dir: runs_dir.clone() };
    let Some(command) = cli.command else { return train(program, cli.train, style, true) };
    match command {
        Command::Train(args) => train(program, args, style, false),
        Command::Plan(args) => {
            let given = Given { flags: args.settings.0, demo: args.demo, ..Given::default() };
            commands::plan(program, given, style, args.explain, args.elsewhere.elsewhere())
        }
        Command::Check(args) => {
            let show = args.shown();
            let CheckArgs { data, settings, rejected, write_clean, .. } = args;
            commands::check(settings.0, &data, &rejected, show, write_clean.as_deref(), style)
        }
        Command::Data(args) => args.command.run(style),
        Command::Cluster(args) => args.command.run(program, runs_dir, style),
        Command::Guide { page } => commands::guide(page.as_deref()),
        Command::Watch(name) => commands::watch(program, named(name), style),
        Command::Runs(args) => match args.action {
            None => commands::list(program, runs_dir, args.all, args.matching.as_deref(), style),
            Some(RunsAction::Delete { run, yes }) => commands::delete_runs(&run, runs_dir, yes),
            Some(RunsAction::Clean { yes }) => commands::clean(runs_dir, yes),
        },
        Command::Resume(args) => {
            let resumed = commands::Resumed {
                checkpoint: args.checkpoint,
                length: args.length(),
                accept_changes: args.accept_changes,
                sum_as: args.sum_as,
                on_cluster: args.cluster,
            };
            commands::resume(program, named(args.run), resumed, style)
        }
        Command::Head(args) => {
            commands::head(program, RunName { run: args.run, runs_dir }, args.settings.0, style)
        }
        Command::Stop(args) => commands::stop(args.run, runs_dir, args.no_wait, style.json),
        Command::Export(args) => {
            let (weights, gguf) = (args.weights(), args.gguf());
            commands::export(named(args.run), weights, gguf, style.json)
        }
        Command::Report(args) => {
            commands::report(named(args.run), args.output, args.elsewhere.elsewhere(), style.json)
        }
        Command::Chat(args) => commands::chat(program, args.request(runs_dir), style),
        Command::Compare(args) => commands::compare(program, args.request(runs_dir), style),
        Command::Edit(args) => commands::edit(program, args.command(runs_dir.clone())?, runs_dir, style),
        Command::Pack(args) => {
            let to_v1 = args.to == "v1";
            let drop_damaged = args.drops_damaged();
            let (flags, rejected) = (args.settings.0.clone(), args.rejected.clone());
            let (inputs, output) = args.places()?;
            let request = commands::PackRequest { inputs, output, to_v1, drop_damaged, rejected };
            commands::pack(flags, &request, style)
        }
        Command::Unpack(args) => {
            let to_v1 = args.to == "v1";
            let drop_damaged = args.on_damage == "drop";
            commands::unpack(&args.input, args.output(), to_v1, drop_damaged, style.json)
        }
        Command::Packet(args) => commands::packet(&args.request(), style.json),
        Command::Verify(args) => commands::verify(&args.file, args.rebuild.as_deref(), style.json),
        #[cfg(feature = "serve")]
        Command::Serve(args) => cli::serve(program, args, runs_dir, style.json),
        Command::Doctor => commands::doctor(program, runs_dir, style.json),
        Command::Bench(args) => commands::bench(program, args.request(style.json)),
        Command::Completions { shell } => {
            output::print(shell.script())?;
            Ok(Exit::Done)
        }
        Command::Complete { words } => {
            output::print(&cli::complete(&words))?;
            Ok(Exit::Done)
        }
        Command::DataWorker => sparktune_app::data_worker::serve(),
        Command::Generate(args) => commands::generate(program, args.request(runs_dir), style.json),
        Command::InferWorker(args) => commands::infer_worker(&args.options()),
        Command::Trainer { run_dir, accept_changes, sum_as } => {
            commands::trainer(program, &run_dir, accept_changes, sum_as)
        }
    }
}

fn train(
    program: &Program,
    args: cli::TrainArgs,
    style: Style,
    is_front_door: bool,
) -> Result<Exit, Failure> {
    let given = Given {
        flags: args.settings.0,
        demo: args.demo,
        sum_as: args.sum_as,
        on_cluster: args.cluster,
        after: args.after,
    };
    commands::train(program, given, style, args.dry_run, is_front_door)
}
