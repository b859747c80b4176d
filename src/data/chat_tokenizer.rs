//! The tokenizer and chat template of one checkpoint folder: a [`Conversation`] → [`Tokens`].
//!
//! Enters: the folder, whose smaller files `tokenizer_files` reads, then conversations. Leaves: tokens with
//! their loss mask, or the reason why there are none. It must not know where conversations come from.

use std::ops::Range;
use std::path::{Path, PathBuf};

use aho_corasick::AhoCorasick;
use serde_json::Value;
use sparktune_base::regular_file::read_tokenizer_json;
use sparktune_base::thinking::{Opening, Thinking};
use sparktune_base::units::count;
use tokenizers::Tokenizer;

use crate::around_text::AroundText;
use crate::at_work::{self, ModelFile};
use crate::byte_bpe::ByteBpe;
use crate::conversation::{Chat, Content, Conversation, Message};
use crate::error::{DataError, quoted};
use crate::explain;
use crate::python_json::template_value;
use crate::rejection::{Kind, Rejection};
use crate::template::{Call, ChatTemplate, MOST_SOURCE_BYTES, Rendered, TemplateKwargs, error_text};
use crate::tokenizer_files::{TOKENIZER_CONFIG, end_ids, named_tokens, read_json, template_of};
use crate::tokenizer_oddities::oddities;
use crate::tokens::{Ahead, Tokens};
use crate::turns::{MaskPolicy, ThinkingSupport, TurnShape, generation_prompt};

const TOKENIZER: &str = "tokenizer.json";
const GENERATION_CONFIG: &str = "generation_config.json";
/// The largest number of bytes that the crate `tokenizers` gets at once: it takes up to a hundred times as
/// much memory. Only an example of several hundred thousand tokens has more.
const MOST_TEXT_BYTES: usize = 4 << 20;

/// `tokenizer.json`, chat template and special tokens of one checkpoint. Threads can share it by reference;
/// it is not meant to be cloned.
pub struct ChatTokenizer {
    folder: PathBuf,
    tokenizer: Tokenizer,
    tokenizer_path: PathBuf,
    short_cut: Option<ByteBpe>,
    template: Option<(ChatTemplate, TurnShape)>,
    template_path: PathBuf,
    kwargs: TemplateKwargs,
    /// The same as the template reads them.
    kwarg_values: Vec<(String, minijinja::Value)>,
    special: Option<AhoCorasick>,
    eos_token: Option<(u32, String)>,
    eos_token_ids: Vec<u32>,
    oddities: Vec<String>,
    around: AroundText,
    tokenizer_hash: String,
    template_hash: Option<String>,
}

impl ChatTokenizer {
    /// Reads `tokenizer.json`, and if they exist `tokenizer_config.json`, `chat_template.jinja` (or the
    /// template inside the configuration) and `generation_config.json`.
    ///
    /// # Errors
    /// The tokenizer is missing or unreadable, or the template does not compile or does not separate turns
    /// clearly. A checkpoint without a template is not an error: it can still tokenise prompt/completion
    /// data.
    pub fn from_dir(folder: &Path) -> Result<Self, DataError> {
        Self::open(folder, None)
    }

    /// Like [`from_dir`](Self::from_dir), with the chat template in a file of its own, if one is given.
    ///
    /// # Errors
    /// The same as for [`from_dir`](Self::from_dir), or the file cannot be read.
    pub fn open(folder: &Path, template_file: Option<&Path>) -> Result<Self, DataError> {
        Self::read(folder, Some(template_file))
    }

    /// Reads the tokenizer alone, to decode tokens and for the ids of special ones. No chat template is run.
    ///
    /// # Errors
    /// The tokenizer is missing or unreadable.
    pub fn without_template(folder: &Path) -> Result<Self, DataError> {
        Self::read(folder, None)
    }

    /// Reads the tokenizer and, unless `template` is `None`, the chat template: that of the file if one is
    /// named, otherwise the folder's own.
    fn read(folder: &Path, template: Option<Option<&Path>>) -> Result<Self, DataError> {
        let config = read_json(&folder.join(TOKENIZER_CONFIG))?.unwrap_or(Value::Null);
        let generation = read_json(&folder.join(GENERATION_CONFIG))?.unwrap_or(Value::Null);
        let path = folder.join(TOKENIZER);
        let bytes = read_tokenizer_json(&path).map_err(DataError::io("read", &path))?;
        // A tokenizer is read much faster than text is tokenised.
        let reading = at_work::with(ModelFile::Tokenizer, &path, bytes.len() / 4);
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|e| {
            DataError::model(
                &path,
                format!("not a tokenizer that this build can read ({})", quoted(&e.to_string())),
                "Download the model again",
            )
        })?;
        // Limits and padding stored in the file apply to inference batches, not to training examples.
        let _ = tokenizer.with_truncation(None);
        tokenizer.with_padding(None);
        let special_tokens = named_tokens(&config);
        let named = |name: &str| special_tokens.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        let eos_token = named("eos_token").and_then(|t| Some((tokenizer.token_to_id(&t)?, t)));
        let eos_token_ids = end_ids(&generation, eos_token.as_ref().map(|e| e.0));

        let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        let special: Vec<String> =
            added.into_iter().filter(|(_, t)| t.special).map(|(_, t)| t.content).collect();
        let ends: Vec<String> = eos_token_ids.iter().filter_map(|id| tokenizer.id_to_token(*id)).collect();

        let special_texts = if special.is_empty() { None } else { AhoCorasick::new(&special).ok() };
        let around = AroundText::of(&tokenizer, eos_token.as_ref().map(|(id, _)| *id));
        let oddities = oddities(&tokenizer);
        let short_cut = ByteBpe::new(&tokenizer);
        drop(reading);

        let mut template_hash = None;
        let mut template_path = folder.to_owned();
        let source = template.map(|file| template_of(folder, &config, file)).transpose()?.flatten();
        let template = match source {
            None => None,
            Some((path, source)) => {
                let unusable = |problem: String| unusable_template(&path, &problem);
                if source.len() > MOST_SOURCE_BYTES {
                    let (bytes, most) = (count(source.len() as u64), MOST_SOURCE_BYTES >> 10);
                    return Err(unusable(format!("it has {bytes} bytes; a template may have {most} KiB")));
                }
                let _learning = at_work::with(ModelFile::Template, &path, source.len());
                template_hash = Some(blake3::hash(source.as_bytes()).to_hex().to_string());
                let template =
                    ChatTemplate::new(&source, &special_tokens).map_err(|e| unusable(error_text(&e)))?;
                let shape = TurnShape::learn(&template, &ends, &special).map_err(unusable)?;
                if let Some(fault) = template.fault() {
                    return Err(unusable(fault.to_owned()));
                }
                template_path.clone_from(&path);
                Some((template, shape))
            }
        };
        Ok(Self {
            folder: folder.to_owned(),
            around,
            oddities,
            short_cut,
            tokenizer_path: path,
            tokenizer,
            template,
            template_path,
            kwargs: TemplateKwargs::new(),
            kwarg_values: Vec::new(),
            special: special_texts,
            eos_token,
            eos_token_ids,
            tokenizer_hash: blake3::hash(&bytes).to_hex().to_string(),
            template_hash,
        })
    }

    /// Returns the tokens of an example and their loss mask.
    ///
    /// Special tokens that occur in the text are parsed as such, as transformers does; see
    /// [`special_tokens_in`](Self::special_tokens_in).
    ///
    /// # Errors
    /// The template refuses the conversation, its turns cannot be separated with certainty, or the checkpoint
    /// has no template.
    pub fn encode_conversation(
        &self,
        conversation: &Conversation<'_>,
        policy: impl Into<MaskPolicy>,
    ) -> Result<Tokens, Rejection> {
        match conversation {
            Conversation::Chat(chat) => {
                let (rendered, targets) = self.render_chat(chat, policy.into())?;
                self.trained_tokens(&rendered.text, &targets)
            }
            Conversation::Completion { prompt, completion } => self.encode_completion(prompt, completion),
            Conversation::Document(document) => self.encode_document(document),
        }
    }

    /// Describes what makes its tokens ambiguous or random, in sentences that name the file.
    pub fn oddities(&self) -> impl Iterator<Item = String> {
        self.oddities.iter().map(|oddity| format!("{}: {oddity}", self.tokenizer_path.display()))
    }

    /// Returns an error once the template took more work for one conversation than any honest template takes.
    /// Nothing can be rendered with it then.
    ///
    /// # Errors
    /// The error names the template's file.
    pub fn template_holds(&self) -> Result<(), DataError> {
        let fault = self.template.as_ref().and_then(|(template, _)| template.fault());
        fault.map_or(Ok(()), |fault| Err(unusable_template(&self.template_path, fault)))
    }

    /// Returns the tokens around every text that is not rendered by a template.
    pub(crate) fn around_text(&self) -> &AroundText {
        &self.around
    }

    /// Returns a rendered chat and the byte ranges in it that are trained.
    pub(crate) fn render_chat(
        &self,
        chat: &Chat<'_>,
        policy: MaskPolicy,
    ) -> Result<(Rendered, Vec<Range<usize>>), Rejection> {
        let (template, shape) = self.template.as_ref().ok_or_else(|| self.no_template())?;
        let rendered = self.render(chat)?;
        let targets = shape.targets(chat, &rendered, template.has_generation_marks, policy.think)?;
        Ok((rendered, targets))
    }

    /// Returns the tokens of a rendered chat, of which at least one is trained.
    pub(crate) fn trained_tokens(&self, text: &str, targets: &[Range<usize>]) -> Result<Tokens, Rejection> {
        let tokens = self.tokenise(text, targets, false)?;
        if tokens.target_count() == 0 {
            return Err(Rejection::new(
                Kind::NothingToTrain,
                "messages",
                "none of its tokens would be trained",
                "Give an assistant turn some text",
            ));
        }
        Ok(tokens)
    }

    /// Returns the rendered text of a chat and the byte ranges in it that are trained, for previews.
    pub fn render_targets(
        &self,
        chat: &Chat<'_>,
        policy: MaskPolicy,
    ) -> Result<(String, Vec<Range<usize>>), Rejection> {
        self.render_chat(chat, policy).map(|(rendered, targets)| (rendered.text, targets))
    }

    /// Returns the text of an example as it is tokenised, for any kind of conversation, and the byte ranges
    /// in it that are trained.
    pub(crate) fn text_and_targets(
        &self,
        conversation: &Conversation<'_>,
        policy: MaskPolicy,
    ) -> Result<(String, Vec<Range<usize>>), Rejection> {
        let (prompt, completion) = match conversation {
            Conversation::Chat(chat) => return self.render_targets(chat, policy),
            Conversation::Completion { prompt, completion } => (&**prompt, &**completion),
            Conversation::Document(document) => ("", &*document.text),
        };
        let mut text = format!("{prompt}{completion}");
        if let Some((_, eos)) = self.eos_token.as_ref().filter(|(_, eos)| !text.ends_with(eos)) {
            text.push_str(eos);
        }
        let targets = prompt.len()..text.len();
        Ok((text, vec![targets]))
    }

    /// Returns how many bytes of the text of [`text_and_targets`](Self::text_and_targets) the first `tokens`
    /// tokens of an example stand for.
    pub(crate) fn bytes_of(&self, conversation: &Conversation<'_>, text: &str, tokens: usize) -> usize {
        let add_special_tokens = matches!(conversation, Conversation::Completion { .. });
        let _at_work = at_work::with(ModelFile::Tokenizer, &self.tokenizer_path, text.len());
        let encoding = self.tokenizer.encode(text, add_special_tokens).ok();
        let end = encoding.and_then(|e| e.get_offsets().get(tokens.checked_sub(1)?).map(|offset| offset.1));
        text.floor_char_boundary(end.unwrap_or(text.len()))
    }

    /// Returns the byte ranges of special tokens that occur in a text.
    pub(crate) fn special_ranges(&self, text: &str) -> Vec<Range<usize>> {
        self.special.iter().flat_map(|special| special.find_iter(text)).map(|found| found.range()).collect()
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// The same as for [`encode_conversation`](Self::encode_conversation).
    pub fn render(&self, chat: &Chat<'_>) -> Result<Rendered, Rejection> {
        self.render_with(chat, Call { add_generation_prompt: false, kwargs: &self.kwarg_values })
    }

    /// Renders a conversation as a server does that is asked for the next answer.
    ///
    /// # Errors
    /// The same as for [`encode_conversation`](Self::encode_conversation).
    pub fn render_prompt(&self, chat: &Chat<'_>) -> Result<Rendered, Rejection> {
        self.render_with(chat, Call { add_generation_prompt: true, kwargs: &self.kwarg_values })
    }

    /// Tokenises what a user says to the model as a server does that is asked for an answer; without a
    /// template, the text as it is.
    ///
    /// # Errors
    /// The same as for [`encode_conversation`](Self::encode_conversation).
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, Rejection> {
        if self.template.is_none() {
            return self.encode(text);
        }
        let said = Message { role: "user".into(), content: Content::Text(text.into()), ..Message::default() };
        let rendered = self.render_prompt(&Chat { messages: vec![said], tools: None })?;
        self.encode(&rendered.text)
    }

    /// Like [`render_prompt`](Self::render_prompt), with further variables of the template, which take
    /// precedence over those that are set. Those that would replace special tokens are ignored.
    ///
    /// # Errors
    /// The same as for [`encode_conversation`](Self::encode_conversation).
    pub fn render_prompt_with(
        &self,
        chat: &Chat<'_>,
        kwargs: &TemplateKwargs,
    ) -> Result<Rendered, Rejection> {
        let given = kwargs.iter().filter(|(name, _)| !self.is_special_token(name));
        let given = given.map(|(name, value)| (name.clone(), template_value(value)));
        let kept = self.kwarg_values.iter().filter(|(name, _)| !kwargs.contains_key(name)).cloned();
        let all: Vec<_> = kept.chain(given).collect();
        self.render_with(chat, Call { add_generation_prompt: true, kwargs: &all })
    }

    fn render_with(&self, chat: &Chat<'_>, call: Call<'_>) -> Result<Rendered, Rejection> {
        let (template, _) = self.template.as_ref().ok_or_else(|| self.no_template())?;
        let _at_work = at_work::with(ModelFile::Template, &self.template_path, chat.bytes());
        template.render(chat, call).map_err(|e| refused(chat, &error_text(&e)))
    }

    /// Sets the variables with which the template is rendered from now on.
    pub fn set_kwargs(&mut self, kwargs: TemplateKwargs) {
        let values = kwargs.iter().map(|(name, value)| (name.clone(), template_value(value)));
        self.kwarg_values = values.collect();
        self.kwargs = kwargs;
    }

    /// Returns whether the template reads a variable of this name.
    pub fn reads_variable(&self, name: &str) -> bool {
        let _at_work = at_work::with(ModelFile::Template, &self.template_path, 0);
        self.template.as_ref().is_some_and(|(template, _)| template.reads(name))
    }

    /// Returns whether a variable of this name is one of the tokenizer's special tokens.
    pub fn is_special_token(&self, name: &str) -> bool {
        self.template.as_ref().is_some_and(|(template, _)| template.is_special_token(name))
    }

    /// Returns the variables with which the template is rendered.
    pub fn kwargs(&self) -> &TemplateKwargs {
        &self.kwargs
    }

    /// Encodes text to ids. Special tokens in the text are parsed; none are added.
    ///
    /// # Errors
    /// The tokenizer fails, which for byte-level vocabularies does not happen.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Rejection> {
        self.tokenise(text, &[], false).map(|t| t.input_ids)
    }

    /// Decodes ids to text, including special tokens. Unknown ids are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let _at_work = at_work::with(ModelFile::Tokenizer, &self.tokenizer_path, 4 * ids.len());
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Returns the ids that end a generation, from `generation_config.json` and the tokenizer's `eos_token`.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// Returns the ids that do not represent text: those that end a generation, and the special ones of
    /// `tokenizer.json`.
    pub fn special_token_ids(&self) -> Vec<u32> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id);
        let mut ids: Vec<u32> = special.chain(self.eos_token_ids.iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the number of ids, including added tokens.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns how the template treats reasoning, or `None` without a template.
    pub fn thinking(&self) -> Option<ThinkingSupport> {
        self.template.as_ref().map(|(_, shape)| shape.thinking())
    }

    /// Returns what the template does about thinking with the variables that are set now.
    pub fn thinking_now(&self) -> Thinking {
        let Some((template, shape)) = &self.template else { return Thinking::default() };
        let _at_work = at_work::with(ModelFile::Template, &self.template_path, 0);
        let opening = generation_prompt(template, &self.kwarg_values).unwrap_or_default();
        Thinking { inserts_block: shape.thinking().empty_block.is_some(), opening: Opening::of(&opening) }
    }

    /// Returns the BLAKE3 hash (hex) of `tokenizer.json`.
    pub fn tokenizer_hash(&self) -> &str {
        &self.tokenizer_hash
    }

    /// Returns the BLAKE3 hash (hex) of the template's source.
    pub fn template_hash(&self) -> Option<&str> {
        self.template_hash.as_deref()
    }

    /// Returns the BLAKE3 hash (hex) over both and the template's variables. Equal fingerprints tokenise
    /// equally.
    pub fn fingerprint(&self) -> String {
        let template = self.template_hash.as_deref().unwrap_or("none");
        let kwargs = serde_json::json!(self.kwargs);
        blake3::hash(format!("{}\n{template}\n{kwargs}", self.tokenizer_hash).as_bytes()).to_hex().to_string()
    }

    /// Returns how many special tokens occur in the example's own text. They become real special tokens.
    pub fn special_tokens_in(&self, conversation: &Conversation<'_>) -> usize {
        let Some(special) = &self.special else { return 0 };
        let count = |text: &str| special.find_iter(text).count();
        match conversation {
            Conversation::Completion { prompt, completion } => count(prompt) + count(completion),
            Conversation::Document(document) => count(&document.text),
            Conversation::Chat(chat) => chat
                .messages
                .iter()
                .map(|m| {
                    m.texts().map(count).sum::<usize>() + m.reasoning_content.as_deref().map_or(0, count)
                })
                .sum(),
        }
    }

    /// Encodes prompt and completion as one text, in which the completion and the end-of-text token are
    /// targets.
    fn encode_completion(&self, prompt: &str, completion: &str) -> Result<Tokens, Rejection> {
        let mut text = String::with_capacity(prompt.len() + completion.len() + 16);
        text.push_str(prompt);
        text.push_str(completion);
        let completed = prompt.len()..text.len();
        let mut tokens = self.tokenise(&text, std::slice::from_ref(&completed), true)?;
        if let Some((eos, _)) = &self.eos_token {
            // An end of text that the tokenizer adds is outside the completion's characters, but a target all
            // the same.
            if tokens.input_ids.last() == Some(eos) {
                tokens.loss_mask.pop();
            } else {
                tokens.input_ids.push(*eos);
            }
            tokens.loss_mask.push(true);
        }
        if let Some(first) = tokens.loss_mask.first_mut() {
            *first = false;
        }
        if tokens.target_count() == 0 {
            return Err(Rejection::new(
                Kind::NothingToTrain,
                "completion",
                "none of its tokens would be trained",
                "Give the prompt or the completion more text",
            ));
        }
        Ok(tokens)
    }

    /// A token is a target when any byte of it lies in a target range.
    fn tokenise(
        &self,
        text: &str,
        targets: &[Range<usize>],
        add_special_tokens: bool,
    ) -> Result<Tokens, Rejection> {
        let _at_work = at_work::with(ModelFile::Tokenizer, &self.tokenizer_path, text.len());
        let mut tokens = Tokens::default();
        let (before, after) = if add_special_tokens {
            (&self.around.before[..], &self.around.after[..])
        } else {
            (&[][..], &[][..])
        };
        tokens.add_untrained(before);
        let mut ahead = Ahead(targets);
        let mut at = 0;
        let short_cut = self.short_cut.as_ref().filter(|_| !add_special_tokens || self.around.is_known);
        let done = short_cut.is_some_and(|bpe| {
            bpe.encode(&self.tokenizer, text, |id, bytes| {
                tokens.input_ids.push(id);
                tokens.loss_mask.push(ahead.touches(at, at + bytes));
                at += bytes;
            })
        });
        if done {
            tokens.add_untrained(after);
        } else {
            if text.len() > MOST_TEXT_BYTES {
                let is_unusual = short_cut.is_some();
                return Err(explain::too_much_text(text.len(), MOST_TEXT_BYTES, is_unusual));
            }
            let encoding =
                self.tokenizer.encode(text, add_special_tokens).map_err(|e| self.tokenizer_failed(&e))?;
            let mut ahead = Ahead(targets);
            tokens.input_ids = encoding.get_ids().to_vec();
            tokens.loss_mask = encoding.get_offsets().iter().map(|o| ahead.touches(o.0, o.1)).collect();
        }
        if let Some(first) = tokens.loss_mask.first_mut() {
            *first = false;
        }
        Ok(tokens)
    }

    fn tokenizer_failed(&self, error: &tokenizers::Error) -> Rejection {
        Rejection::new(
            Kind::TokenizerFailed,
            "",
            format!(
                "{} cannot tokenise the text: {}",
                self.tokenizer_path.display(),
                quoted(&error.to_string())
            ),
            "Look for characters that this tokenizer does not know",
        )
    }

    fn no_template(&self) -> Rejection {
        Rejection::new(
            Kind::TemplateRefused,
            "messages",
            format!("{} has no chat template", self.folder.display()),
            "Choose the instruction-tuned version of this model, put a chat_template.jinja into its folder, or write the data as prompt and completion",
        )
    }
}

fn unusable_template(path: &Path, problem: &str) -> DataError {
    DataError::model(
        path,
        format!("the chat template cannot be used: {problem}"),
        "Replace it with a template that writes all messages in one loop, or report this",
    )
}

fn refused(chat: &Chat<'_>, message: &str) -> Rejection {
    // The message of a template is often a sentence, and the fix is another.
    let message = message.trim_end().trim_end_matches('.');
    let fix = match chat.unusual_order() {
        Some(order) => format!("Change the order of turns: the example has {order}"),
        None => "Change the conversation so that the model's chat template accepts it".to_owned(),
    };
    Rejection::new(
        Kind::TemplateRefused,
        "messages",
        format!("the model's chat template rejects it: {message}"),
        fix,
    )
}
