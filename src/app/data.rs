//! Reads, checks and tokenises data for a model, and shows it as the model sees it.
//!
//! Enters: the answers about data, and the model's tokenizer. Leaves: token files in the cache next to the
//! runs, the report, and the figures that the plan needs.

use std::path::{Path, PathBuf};

use sparktune_base::choices::{Overlong, Think};
use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::program_name;
use sparktune_base::shell::shown_word;
use sparktune_base::thinking::Thinking;
use sparktune_base::units::{count, counted, percent};
use sparktune_data::token_file::{OnDamage, TokenFile};
use sparktune_data::{
    EvalData, EvalSplit, ExampleOptions, Format, Input, KeptLine, LengthReport, OverlongReport,
    PrepareOptions, Prepared, Preview, PreviewOptions, RejectedList, Report, SAME_TOKENS_SINCE, SetReport,
    Unit, Wanted,
};
use sparktune_plan::plan::DataPlan;
use sparktune_plan::{
    Answers, DataFacts, DataFormat, EvalSetFacts, LengthBucket, ModelFacts, ParentFacts, SetFacts, Setting,
    TemplateKwargs, TooLong, check_range,
};

use crate::clean::files_that_can_be_copied;
use crate::data_sets::{DataSets, weights_for};
use crate::data_worker::{ModelTokenizer, PrepareRequest, PreviewRequest};
use crate::failure::{Exit, Failure};
use crate::folders::runs_dir_of;
use crate::listener::{Listener, Silent};
use crate::model::{BaseModel, find_base};
use crate::parent::facts_of_parent;
use crate::token_cache::token_cache;
use crate::token_files::{packed, packed_facts, set_kwargs_for};

/// The result of reading all data.
#[derive(Debug, Clone)]
pub struct DataFound {
    /// The lengths and counts in tokens of the model, for the plan.
    pub facts: DataFacts,
    /// The run or adapter to start from.
    pub parent: Option<ParentFacts>,
    /// The findings. Counts by kind include the rejected lines.
    pub report: Report,
    /// Some examples as the model will see them.
    pub preview: Preview,
}

/// Some of the rejected lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedPage {
    /// The number of rejected lines before the first one of this page.
    pub offset: u64,
    /// The lines in the order of the data; fewer than requested only at the end.
    pub rows: Vec<KeptLine>,
    /// The number of lines in the list.
    pub total: u64,
    /// The list, which has the first 100,000 rejected lines of each file of the data.
    pub file: Option<PathBuf>,
}

/// The rejected lines of prepared data.
pub struct RejectedLines {
    list: RejectedList,
    file: PathBuf,
    total: u64,
}

impl RejectedLines {
    /// Opens the list. Returns `None` if no line was rejected or too long.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn open(prepared: &Prepared) -> Result<Option<Self>, Failure> {
        let Some(file) = &prepared.rejected else { return Ok(None) };
        let list = RejectedList::open(file)?;
        Ok(Some(Self { list, file: file.clone(), total: prepared.report.listed_lines() }))
    }

    /// Returns up to `limit` lines after the first `offset`, each cut to `max_bytes`.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn page(&mut self, offset: u64, limit: usize, max_bytes: usize) -> Result<RejectedPage, Failure> {
        let rows = self.list.page(offset, limit, max_bytes)?;
        Ok(RejectedPage { offset, rows, total: self.total, file: Some(self.file.clone()) })
    }
}

/// Returns whether the empty think block that a template inserts is trained, from the answers or by the
/// plan's own rule.
pub fn think(answers: &Answers, thinking: Thinking) -> Think {
    answers.think.as_ref().map_or_else(|| thinking.think(), |answer| answer.value)
}

/// Returns how a conversation becomes examples, from the answers or by the plan's own rules.
pub(crate) fn example_options(answers: &Answers) -> ExampleOptions {
    let Answers { train_on, split_turns, overlong, max_example_tokens, .. } = answers;
    ExampleOptions {
        train_on: train_on.as_ref().map(|answer| answer.value).unwrap_or_default(),
        split_turns: split_turns.as_ref().is_some_and(|answer| answer.value),
        overlong: overlong.as_ref().map(|answer| answer.value).unwrap_or_default(),
        long_pieces: max_example_tokens.is_some(),
    }
}

/// Returns what the columns of foreign data stand for, from the answers.
pub(crate) fn map(answers: &Answers) -> FieldMap {
    answers.map.as_ref().map(|answer| answer.value.clone()).unwrap_or_default()
}

/// Returns what becomes of damaged examples in token files, from the answers.
pub fn on_damage(answers: &Answers) -> OnDamage {
    match answers.on_damage.as_ref().map(|answer| answer.value).unwrap_or_default() {
        sparktune_plan::OnDamage::Stop => OnDamage::Stop,
        sparktune_plan::OnDamage::Drop => OnDamage::Skip,
    }
}

/// Returns the format in the answers, or `None` if it should be detected.
pub fn format(answers: &Answers) -> Option<Format> {
    format_of(answers.format.as_ref()?.value)
}

/// Returns the format that a choice stands for; `None` for `auto`.
fn format_of(choice: DataFormat) -> Option<Format> {
    match choice {
        DataFormat::Auto => None,
        DataFormat::Messages => Some(Format::Messages),
        DataFormat::Sharegpt => Some(Format::ShareGpt),
        DataFormat::Alpaca => Some(Format::Alpaca),
        DataFormat::PromptCompletion => Some(Format::PromptCompletion),
        DataFormat::Text => Some(Format::Text),
    }
}

/// Returns the number of tokens above which an example is too long.
///
/// # Errors
/// The answer is outside the range of its setting, which ends at the model's own limit.
pub fn max_example_tokens(answers: &Answers, model: &ModelFacts) -> Result<u32, Failure> {
    let limit = u32::try_from(model.config.max_example_tokens()).unwrap_or(u32::MAX);
    let Some(answer) = &answers.max_example_tokens else { return Ok(limit) };
    let setting = Setting::of("data.max_example_tokens").expect("this setting has a row");
    check_range(setting, answers, model)?;
    Ok(answer.value)
}

/// Returns the number of ids that the model knows.
pub(crate) fn vocabulary(model: &ModelFacts) -> u32 {
    u32::try_from(model.config.vocab_size).unwrap_or(u32::MAX)
}

/// Returns the share of rejected lines above which the data is refused.
pub fn max_rejected(answers: &Answers) -> f64 {
    answers.max_rejected.as_ref().map_or(DataPlan::MAX_REJECTED, |answer| answer.value)
}

/// Tokenises the data into the cache next to the runs, unless it is there already. The tokenizer keeps the
/// variables of the chat template that were used.
///
/// # Errors
/// The data cannot be read, or the user cancelled. Problems in the data are in the report.
pub fn prepare_data(
    answers: &Answers,
    base: &BaseModel,
    listener: &dyn Listener,
) -> Result<Prepared, Failure> {
    let sets = DataSets::find(answers, listener)?;
    let weights = weights_for(answers, &sets.train)?;
    let read_as = (format(answers), &map(answers));
    set_kwargs_for(&base.tokenizer, answers, &sets.all(), read_as, listener)?;
    let inputs = sets.train;
    let eval = match (&answers.eval_data, &answers.eval_fraction) {
        (Some(_), _) => EvalData::Files(sets.eval),
        // A share that the user gave is used unchanged, without a minimum number of examples.
        (None, Some(share)) => {
            EvalData::Split(EvalSplit { fraction: share.value, min_examples: 0, ..EvalSplit::default() })
        }
        (None, None) => EvalData::default(),
    };
    let options = PrepareOptions {
        format: format(answers),
        map: map(answers),
        policy: think(answers, base.tokenizer.thinking_now()).into(),
        examples: example_options(answers),
        max_example_tokens: Some(max_example_tokens(answers, &base.facts)?),
        vocabulary: Some(vocabulary(&base.facts)),
        on_damage: on_damage(answers),
        eval,
    };
    let folder = token_cache(&runs_dir_of(answers))?.join(cache_key(&base.tokenizer, &inputs, &options));
    let mut prepared = base.tokenizer.prepare(PrepareRequest { inputs, options, folder }, listener)?;
    prepared.report.set_weights(&weights);
    Ok(prepared)
}

/// Returns the name of the cache folder for one set of inputs and one way of reading them. `prepare` checks
/// whether its contents are current.
fn cache_key(tokenizer: &ModelTokenizer, inputs: &[Input], options: &PrepareOptions) -> String {
    let paths = inputs.iter().flat_map(|input| &input.files).map(|file| &file.path);
    let absolute: Vec<PathBuf> =
        paths.map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let PrepareOptions { format, map, policy, examples, max_example_tokens, eval, on_damage, vocabulary: _ } =
        options;
    let ExampleOptions { train_on, split_turns, overlong, long_pieces } = examples;
    // The spelling stays as it is, so that folders are found again. Where one folder serves two ways of
    // reading, `prepare` reads the data again.
    let overlong = if *overlong == Overlong::Auto { Overlong::Drop } else { *overlong };
    let examples = format!(
        "ExampleOptions {{ train_on: {train_on:?}, split_turns: {split_turns:?}, overlong: {overlong:?} }}"
    );
    let options = format!(
        "PrepareOptions {{ format: {format:?}, policy: {policy:?}, examples: {examples}, max_example_tokens: {max_example_tokens:?}, eval: {eval:?} }}"
    );
    // Version 1 of the split with a minimum followed the order of the lines.
    let split = match eval {
        EvalData::Split(split) if split.min_examples > 0 && split.fraction > 0.0 => " split 2",
        _ => "",
    };
    let more = if map.is_empty() && !long_pieces { String::new() } else { format!(" {map} {long_pieces}") };
    let damage = if *on_damage == OnDamage::Skip { " without damaged examples" } else { "" };
    // A run continues only with the tokens that it has begun with, so other ones take no older folder.
    let tokens = format!(" tokens {SAME_TOKENS_SINCE}");
    let key = format!("{} {absolute:?} {options}{more}{split}{damage}{tokens}", tokenizer.fingerprint());
    blake3::hash(key.as_bytes()).to_hex()[..16].to_owned()
}

/// Returns a few examples of the data as the model sees them.
///
/// # Errors
/// The data cannot be read.
pub fn preview(
    answers: &Answers,
    base: &BaseModel,
    limit: Option<usize>,
    listener: &dyn Listener,
) -> Result<Preview, Failure> {
    let sets = DataSets::find(answers, &Silent)?;
    preview_of(&sets.train, answers, base, limit, None, listener)
}

/// Returns a few examples of these inputs, or those that are looked for.
pub(crate) fn preview_of(
    inputs: &[Input],
    answers: &Answers,
    base: &BaseModel,
    limit: Option<usize>,
    wanted: Option<Wanted>,
    listener: &dyn Listener,
) -> Result<Preview, Failure> {
    let defaults = PreviewOptions::default();
    let options = PreviewOptions {
        format: format(answers),
        map: map(answers),
        examples: example_options(answers),
        max_example_tokens: Some(max_example_tokens(answers, &base.facts)?),
        limit: limit.unwrap_or(defaults.limit),
        ..defaults
    };
    base.tokenizer.preview(PreviewRequest { inputs: inputs.to_vec(), options, wanted }, listener)
}

/// Reads and tokenises the data of these answers, which must name a model too. Also returns the rejected
/// lines.
///
/// # Errors
/// The same as for [`find_base`] and [`prepare_data`]. Rejected lines, however many, are not an error: see
/// [`refusal`].
pub fn read(
    answers: &Answers,
    listener: &dyn Listener,
) -> Result<(DataFound, Option<RejectedLines>), Failure> {
    let base = find_base(answers, listener)?;
    let prepared = prepare_data(answers, &base, listener)?;
    let rejected = RejectedLines::open(&prepared)?;
    let found = DataFound {
        facts: data_facts(answers, &base.tokenizer, &prepared)?,
        parent: facts_of_parent(answers, &base.facts.config)?,
        preview: preview(answers, &base, None, listener)?,
        report: prepared.report,
    };
    Ok((found, rejected))
}

/// Returns why data with this report cannot be trained on: there is no example, or too many lines were
/// rejected. `None` if it can.
pub fn refusal(answers: &Answers, report: &Report) -> Option<Failure> {
    let limit = max_rejected(answers);
    if let Some(refusal) = nothing_to_train_on(report) {
        return Some(refusal);
    }
    if !report.exceeds(limit) {
        return None;
    }
    if let Some(refusal) = refused_files(report) {
        return Some(refusal);
    }
    if let Some(file) = report.token_files.iter().find(|file| file.is_refused()) {
        let text = format!("{} is damaged: {}", escape(&file.name), counted(file.defects, "defect"));
        return Some(Failure::new(Exit::Data, text).hint(format!(
            "Make it again, or leave out what is damaged with --on-damage drop, or save its intact examples: `{0} verify FILE --rebuild OUT`, for v1 packets `{0} pack --on-damage drop`",
            program_name()
        )));
    }
    if report.filled_lines() == 0 {
        return Some(Failure::new(Exit::Data, "there are no examples: the files are empty"));
    }
    let too_long = report.overlong.lines_left_out;
    if report.examples == 0 && report.rejected_share() <= limit {
        let rejected = format!("{} rejected", counted(report.rejected, "line"));
        let left_out = format!("{} left out as too long", counted(too_long, "line"));
        let all: Vec<String> = [(report.rejected, rejected), (too_long, left_out)]
            .into_iter()
            .filter_map(|(lines, text)| (lines > 0).then_some(text))
            .collect();
        let refusal = Failure::new(Exit::Data, format!("no example is left: {}", all.join(", ")));
        if too_long == 0 {
            return Some(refusal);
        }
        return Some(refusal.hint(
            "Raise --max-example-tokens if you have set it below the model's own limit, or keep parts of the examples with --overlong truncate or --overlong split",
        ));
    }
    let were = if report.rejected == 1 { "was" } else { "were" };
    let text = format!(
        "{} of {} {were} rejected ({}); the limit is {}",
        count(report.rejected),
        counted(report.filled_lines(), "line"),
        percent(report.rejected_share()),
        percent(limit)
    );
    Some(Failure::new(Exit::Data, text))
}

/// The largest number of files that a message names.
const NAMED_FILES: usize = 5;

/// Returns why data cannot be trained on of which files cannot be read. The report has the reason of each.
fn refused_files(report: &Report) -> Option<Failure> {
    let refused: Vec<&str> = report.refused_files().map(|file| &*file.name).collect();
    let mut names: Vec<String> =
        refused.iter().take(NAMED_FILES).map(|name| escape(name).into_owned()).collect();
    if refused.len() > NAMED_FILES {
        names.push("…".to_owned());
    }
    let files = counted(report.files.len() as u64, "file");
    let are = match refused.len() {
        0 => return None,
        1 => "is",
        _ => "are",
    };
    let text = format!("{} of {files} {are} refused: {}", count(refused.len() as u64), names.join(", "));
    Some(Failure::new(Exit::Data, text).hint("Correct or convert what is refused, or name only the others"))
}

/// Returns why data cannot be trained on whose examples are all in the eval set.
fn nothing_to_train_on(report: &Report) -> Option<Failure> {
    let of_eval = report.split.filter(|split| split.train_examples == 0 && split.eval_examples > 0)?;
    let examples = counted(of_eval.eval_examples, "example");
    // Files of eval data that were given apart are in the report.
    if report.files.iter().any(|file| file.eval) || report.token_files.iter().any(|file| file.eval) {
        let text = format!("the training data has no example, only the eval data: {examples}");
        return Some(Failure::new(Exit::Data, text).hint("Correct the training data, or give other --data"));
    }
    let text = format!("nothing is left to train on: the eval set takes everything ({examples})");
    Some(Failure::new(Exit::Data, text).hint(
        "Give more data, a lower --eval-fraction (0 for no eval set), or separate files with --eval-data",
    ))
}

/// Refuses data with too many rejected lines.
///
/// # Errors
/// The failure contains the report and the file of the rejected lines.
pub fn accept(answers: &Answers, prepared: &Prepared) -> Result<(), Failure> {
    let Some(refusal) = refusal(answers, &prepared.report) else { return Ok(()) };
    let kept = match &prepared.rejected {
        Some(path) => format!(". They are listed with their reasons in {}", path.display()),
        None => String::new(),
    };
    let report = prepared.report.to_string();
    let text = format!("the data is not usable:\n{}\n{}{kept}", report.trim_end(), refusal.text);
    Err(with_correction(Failure { text, ..refusal }, &prepared.report))
}

/// Adds what can be done about rejected lines to a refusal of data with this report.
pub fn with_correction(refusal: Failure, report: &Report) -> Failure {
    let program = program_name();
    let seen = format!(" (`{program} check` shows each with its fix)");
    corrected(refusal, report, &seen, |files| {
        let names: Vec<String> = match files {
            [_, _, _, _, ..] => vec!["DATA".to_owned()],
            _ => files.iter().map(|file| shown_word(not_a_flag(file).as_os_str())).collect(),
        };
        format!(
            "`{program} check {} --write-clean FILE` and the same --model, --map and --format",
            names.join(" ")
        )
    })
}

/// Does the same during a check.
pub fn with_correction_in_check(refusal: Failure, report: &Report) -> Failure {
    corrected(refusal, report, "", |_| "--write-clean FILE".to_owned())
}

/// Returns a path that no command takes for a flag.
fn not_a_flag(path: &Path) -> PathBuf {
    if path.as_os_str().as_encoded_bytes().starts_with(b"-") {
        Path::new(".").join(path)
    } else {
        path.into()
    }
}

/// Adds what can be done about rejected lines. `copy` names what copies these files without them.
fn corrected(refusal: Failure, report: &Report, seen: &str, copy: impl Fn(&[&Path]) -> String) -> Failure {
    if report.lines_to_correct() == 0 {
        return refusal;
    }
    let is_of_eval = report.files.iter().any(|file| file.eval && file.rejected > 0);
    let files = files_that_can_be_copied(report).filter(|_| !is_of_eval);
    refusal.hint(match (report.map_hint(), report.accepted_lines(), files) {
        (Some(hint), ..) => hint,
        (None, 0, _) => format!("Correct the lines{seen}"),
        (None, _, None) => format!("Correct the lines{seen}, or raise --max-rejected"),
        (None, _, Some(files)) => format!(
            "Correct the lines{seen}, copy the others into a file of their own with {}, or raise --max-rejected",
            copy(&files)
        ),
    })
}

/// Returns the limit on rejected lines that accepts data with this report, or `None` if the data is accepted
/// already or is refused whatever the limit is.
pub fn limit_that_accepts(answers: &Answers, report: &Report) -> Option<f64> {
    let is_of_use = report.exceeds(max_rejected(answers)) && !report.exceeds(1.0);
    // Rounded up to a whole percent.
    is_of_use.then(|| (report.rejected_share() * 100.0).ceil() / 100.0)
}

/// Returns the figures of the data, from the token files themselves, which the tokenizer with its present
/// variables has made.
///
/// # Errors
/// The token files cannot be read.
pub fn data_facts(
    answers: &Answers,
    tokenizer: &ModelTokenizer,
    prepared: &Prepared,
) -> Result<DataFacts, Failure> {
    let eval = TokenFile::open(&prepared.eval)?;
    let eval_set = EvalSetFacts {
        examples: eval.len() as u64,
        total_tokens: eval.lengths().iter().map(|length| u64::from(*length)).sum(),
        target_tokens: eval.target_tokens(),
    };
    let train = TokenFile::open(&prepared.train)?;
    let sets = set_facts(&prepared.report, &train);
    let pinned = |input: &Input| Some((input.name.clone(), input.pinned.clone()?));
    let pinned = prepared.inputs.iter().filter_map(pinned).collect();
    let packed = packed(answers, &prepared.inputs)?.map(packed_facts);
    let mut files = vec![train];
    // Without separate files, the eval set is a share of the same data.
    if answers.eval_data.is_none() {
        files.push(eval);
    }
    let mut lengths: Vec<u32> = files.iter().flat_map(|file| file.lengths().iter().copied()).collect();
    let Some(report) = LengthReport::new(Unit::Tokens, &mut lengths) else { return Ok(DataFacts::default()) };
    let target_tokens = files.iter().map(TokenFile::target_tokens).sum();
    let OverlongReport { left_out, cut, split, pieces, .. } = &prepared.report.overlong;
    let split = split.occurrences + pieces.occurrences;
    let too_long = TooLong { left_out: left_out.occurrences, cut: cut.occurrences, split };
    let template = prepared.report.template.as_ref();
    let template_kwargs =
        TemplateKwargs(template.map(|template| template.kwargs.clone()).unwrap_or_default());
    let earlier_unlike_served = template.map_or(0, |template| template.earlier_unlike_served.examples);
    let found = DataFacts {
        too_long,
        template_kwargs,
        eval_set: Some(eval_set),
        thinking: tokenizer.thinking_now(),
        earlier_unlike_served,
        sets,
        pinned,
        packed,
        ..facts_of(&report, target_tokens)
    };
    Ok(found)
}

/// Returns the lengths of the training examples of each set.
fn set_facts(report: &Report, train: &TokenFile) -> Vec<SetFacts> {
    let mut lengths = vec![Vec::new(); report.sets.len()];
    let mut targets = vec![0; report.sets.len()];
    for (example, (length, trained)) in train.lengths().iter().zip(train.target_counts()).enumerate() {
        // A single set has no number.
        let set = train.header().set_of(train.origin(example)).unwrap_or(0) as usize;
        if let (Some(lengths), Some(targets)) = (lengths.get_mut(set), targets.get_mut(set)) {
            lengths.push(*length);
            *targets += u64::from(*trained);
        }
    }
    let facts = |((set, mut lengths), targets): ((&SetReport, Vec<u32>), u64)| SetFacts {
        name: set.name.clone(),
        lengths: LengthReport::new(Unit::Tokens, &mut lengths)
            .map_or_else(DataFacts::default, |report| facts_of(&report, targets)),
    };
    report.sets.iter().zip(lengths).zip(targets).map(facts).collect()
}

/// Converts the lengths of a report for the plan.
pub(crate) fn facts_of(report: &LengthReport, target_tokens: u64) -> DataFacts {
    let shorter = report.histogram.first().filter(|bin| bin.from > 0);
    let none = shorter.map(|bin| LengthBucket { up_to: bin.from - 1, count: 0 });
    let bins = report.histogram.iter().map(|bin| LengthBucket { up_to: bin.to - 1, count: bin.count });
    DataFacts {
        examples: report.count,
        total_tokens: report.total,
        target_tokens,
        p50: report.p50,
        p90: report.p90,
        p99: report.p99,
        max: report.max,
        histogram: none.into_iter().chain(bins).collect(),
        ..DataFacts::default()
    }
}

#[cfg(test)]
mod tests {
    use sparktune_base::choices::PackStrategy;
    use sparktune_base::random::SplitMix64;
    use sparktune_data::SplitReport;
    use sparktune_data::packing::Packing;
    use sparktune_plan::packing::Lengths;
    use sparktune_plan::{Catalog, Origin};

    use super::*;

    #[test]
    fn every_format_of_the_plan_but_auto_is_one_of_the_data() {
        for choice in DataFormat::ALL {
            assert_eq!(format_of(*choice).map_or("auto", Format::name), choice.word());
        }
        assert_eq!(DataFormat::ALL.len(), Format::ALL.len() + 1);
    }

    #[test]
    fn data_that_the_eval_set_takes_as_a_whole_is_refused_with_the_setting_that_does_it() {
        let split = Some(SplitReport { train_examples: 0, eval_examples: 1 });
        let report = Report { examples: 1, lines: 1, split, ..Report::default() };
        let refused = refusal(&Answers::default(), &report).unwrap();
        assert_eq!(refused.exit, Exit::Data);
        assert!(refused.text.contains("the eval set takes everything (1 example)"), "{refused}");
        assert!(refused.hints[0].contains("--eval-fraction"), "{:?}", refused.hints);
        let split = Some(SplitReport { train_examples: 1, eval_examples: 0 });
        assert!(refusal(&Answers::default(), &Report { split, ..report }).is_none());
    }

    #[test]
    fn a_limit_on_tokens_outside_its_range_is_refused_before_data_is_read() {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let limit = |text: &str| {
            let mut answers = Answers::default();
            answers.set("max-example-tokens", text, Origin::Flag).unwrap();
            max_example_tokens(&answers, &model)
        };
        let refused = limit("1").unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(
            refused.text.contains("--max-example-tokens") && refused.text.contains("from 2 to"),
            "{refused}"
        );
        assert_eq!(limit("2").unwrap(), 2);
        // The model's own limit is where the range ends.
        let own = max_example_tokens(&Answers::default(), &model).unwrap();
        assert_eq!(limit(&own.to_string()).unwrap(), own);
        let refused = limit("10,000,000").unwrap_err();
        assert!(refused.text.contains("--max-example-tokens"), "{refused}");
    }

    #[test]
    fn the_plan_estimates_the_packs_that_a_run_then_fills() {
        let mut random = SplitMix64::new(7);
        // Distributions with a single length are left out: all lengths fall into one bucket of the histogram,
        // and the plan, which assumes that they are spread over it, differs by up to a third.
        let mut distributions: Vec<(String, Vec<u32>)> = Vec::new();
        for examples in [60, 700, 9_000] {
            let mut draw = |length: &dyn Fn(f64) -> f64| -> Vec<u32> {
                (0..examples).map(|_| length(random.next_f64()).max(1.0) as u32).collect()
            };
            distributions.extend([
                (format!("{examples} even"), draw(&|x| 20.0 + 1500.0 * x)),
                (format!("{examples} mostly short"), draw(&|x| 30.0 * (4.5 * x).exp())),
                (format!("{examples} mostly long"), draw(&|x| 3000.0 * x.sqrt())),
                (
                    format!("{examples} of two kinds"),
                    draw(&|x| if x < 0.7 { 100.0 + x } else { 1900.0 + 300.0 * x }),
                ),
            ]);
        }
        for (name, mut lengths) in distributions {
            let report = LengthReport::new(Unit::Tokens, &mut lengths).unwrap();
            let estimate = Lengths::of(&facts_of(&report, 1), u32::MAX);
            for (strategy, pack_length) in [PackStrategy::Bfd, PackStrategy::Stream]
                .into_iter()
                .flat_map(|s| [2048, 4096, 8192].map(|n| (s, n)))
            {
                let packs = Packing::new(strategy, pack_length, 1).unwrap().epoch(&lengths, 0).len() as f64;
                let estimated = estimate.pack(pack_length, strategy).count;
                // One pack, or 5 %, is allowed, because the plan uses a histogram and the run's order varies
                // by epoch.
                let allowed = (0.05 * packs).max(1.0);
                assert!(
                    (estimated - packs).abs() <= allowed,
                    "{name}, {strategy} {pack_length}: {estimated} for {packs}"
                );
            }
        }
    }
}
