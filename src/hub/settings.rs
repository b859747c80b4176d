//! The Hugging Face environment variables, resolved once in the same way as Python's `huggingface_hub`.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::Cache;
use hf_hub::api::sync::ApiBuilder;

use crate::error::Error;

/// An access token that cannot be printed: `Debug` and `Display` show `[redacted]`.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a token. `name` is the variable or file that it comes from, for error messages.
    fn new(text: &str, name: &'static str) -> Result<Option<Self>, Error> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            let why =
                "the token contains invalid characters. Copy it again from the hub's settings page".into();
            return Err(Error::BadSetting { name, why });
        }
        Ok(Some(Self(text.into())))
    }

    /// Returns the value of the `Authorization` header, the only use of the token.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The limits on attempts and pauses.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The number of consecutive attempts that together bring less than 64 KiB of a file.
    pub attempts: u32,
    /// The pause after the first failure; it doubles each time, up to 30 s.
    pub first_wait: Duration,
    /// The longest silence of a server before the connection is closed, which is also the longest time that
    /// cancelling can take.
    pub silence: Duration,
    /// The longest time for a whole list of files.
    pub list: Duration,
    /// The time after which the bytes of a file that have arrived in it are counted: 64 KiB or more go on.
    pub period: Duration,
}

/// The number of bytes of a file that must arrive in each [`Patience::period`], and in
/// [`Patience::attempts`] that were cut.
pub(crate) const FEWEST: u64 = 64 << 10;

impl Patience {
    /// Returns the pause after the `n`-th consecutive failure (counted from 1).
    pub(crate) fn wait(&self, n: u32) -> Duration {
        const LONGEST: Duration = Duration::from_secs(30);
        self.first_wait.saturating_mul(1 << (n - 1).min(16)).min(LONGEST)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            attempts: 5,
            first_wait: Duration::from_secs(1),
            silence: Duration::from_secs(20),
            list: Duration::from_secs(60),
            period: Duration::from_secs(60),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Settings {
    /// The scheme and authority, without a final slash.
    pub endpoint: String,
    pub token: Option<Token>,
    /// The folder with `models--…`.
    pub cache: PathBuf,
    pub offline: bool,
    pub patience: Patience,
    pub home: Option<PathBuf>,
    /// Whether a proxy variable is set. ureq reads its value, which may contain a password.
    pub proxy: bool,
}

impl Settings {
    pub(crate) fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let get = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let home = get("HOME").map(PathBuf::from);
        let path = |name: &str| get(name).map(|text| expand_home(&text, home.as_deref()));

        let hf_home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hf_home.as_ref().map(|home| home.join("hub")))
            .ok_or_else(|| Error::BadSetting {
                name: "HF_HOME",
                why: "neither HF_HOME nor HOME is set, so there is no folder for the cache. Set HF_HOME to a folder".into(),
            })?;

        let token = match (get("HF_TOKEN"), get("HUGGING_FACE_HUB_TOKEN"), path("HF_TOKEN_PATH"), hf_home) {
            (Some(token), ..) => Token::new(&token, "HF_TOKEN")?,
            (None, Some(token), ..) => Token::new(&token, "HUGGING_FACE_HUB_TOKEN")?,
            (None, None, Some(file), _) => match std::fs::read_to_string(&file) {
                Ok(token) => Token::new(&token, "HF_TOKEN_PATH")?,
                // Python's tools write the file there at the first login.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(unreadable_token("HF_TOKEN_PATH", &file, &error)),
            },
            (None, None, None, Some(home)) => {
                let (file, name) = (home.join("token"), "token file in HF_HOME");
                match std::fs::read_to_string(&file) {
                    Ok(token) => Token::new(&token, name)?,
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        return Err(unreadable_token(name, &file, &error));
                    }
                    // Nobody named this file. If others share the folder, it may be somebody else's.
                    Err(_) => None,
                }
            }
            (None, None, None, None) => None,
        };

        let is_true = |name: &str| {
            get(name)
                .is_some_and(|value| matches!(value.to_lowercase().as_str(), "1" | "on" | "yes" | "true"))
        };
        let mut patience = Patience::default();
        if let Some(text) = get("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds = text.trim().parse().ok().filter(|s| (1..=3600).contains(s)).ok_or_else(|| {
                let why = "not a number of seconds between 1 and 3600".into();
                Error::BadSetting { name: "HF_HUB_DOWNLOAD_TIMEOUT", why }
            })?;
            patience.silence = Duration::from_secs(seconds);
        }
        Ok(Self {
            endpoint: endpoint(get("HF_ENDPOINT"))?,
            token,
            cache,
            offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            patience,
            proxy: PROXIES.into_iter().any(|name| get(name).is_some()),
            home,
        })
    }
}

fn unreadable_token(name: &'static str, file: &Path, error: &std::io::Error) -> Error {
    let why = format!("{file:?} cannot be read: {error}. Correct it or its permissions, or set HF_TOKEN");
    Error::BadSetting { name, why }
}

const PROXIES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

pub(crate) fn expand_home(text: &str, home: Option<&Path>) -> PathBuf {
    match (text.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.into(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(&rest[1..]),
        _ => text.into(),
    }
}

fn endpoint(given: Option<String>) -> Result<String, Error> {
    let Some(given) = given else { return Ok(default_endpoint()) };
    let bad = |why: &str| Error::BadSetting { name: "HF_ENDPOINT", why: why.into() };
    let text = given.trim().trim_end_matches('/');
    let uri: ureq::http::Uri =
        text.parse().map_err(|_| bad("not a valid address. Write it as https://host"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(bad("the address must begin with https:// (or http://)"));
    }
    let authority = uri.authority().ok_or_else(|| bad("the address contains no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("the address must not contain a user or password; set HF_TOKEN instead"));
    }
    if uri.query().is_some() {
        return Err(bad("the address must not have a query"));
    }
    Ok(text.into())
}

/// Returns hf-hub's default endpoint, which is private there; every address it builds begins with it.
fn default_endpoint() -> String {
    // There is no token file next to this cache folder, so none is read.
    let api = ApiBuilder::from_cache(Cache::new("/dev/null/hub".into())).with_token(None).build();
    let url = api.expect("rustls needs no set-up").model("id".into()).url("file");
    url.strip_suffix("/id/resolve/main/file").expect("hf-hub's route to a file").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, Error> {
        Settings::from_env(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn the_cache_folder_follows_the_order_of_huggingface_hub() {
        let cache = |pairs: &[(&str, &str)]| settings(pairs).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/m")]), Path::new("/h/m/hub"));
        assert_eq!(cache(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(cache(&[("HF_HOME", "/m"), ("HF_HUB_CACHE", "")]), Path::new("/m/hub"));
        assert!(settings(&[]).unwrap_err().to_string().contains("Set HF_HOME"));
    }

    #[test]
    fn the_token_comes_from_variables_first_and_then_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let bearer = |pairs: &[(&str, &str)]| settings(pairs).unwrap().token.map(|t| t.bearer());
        assert_eq!(bearer(&[("HF_HOME", home)]).as_deref(), Some("Bearer from-file"));
        assert_eq!(
            bearer(&[("HF_HOME", home), ("HUGGING_FACE_HUB_TOKEN", "b")]).as_deref(),
            Some("Bearer b")
        );
        assert_eq!(
            bearer(&[("HF_HOME", home), ("HF_TOKEN", " a\n"), ("HUGGING_FACE_HUB_TOKEN", "b")]).as_deref(),
            Some("Bearer a")
        );
        assert_eq!(bearer(&[("HF_HOME", "/nowhere")]), None);
    }

    #[test]
    fn a_malformed_token_is_refused_without_being_shown() {
        let error = settings(&[("HOME", "/h"), ("HF_TOKEN", "se cret\u{1b}")]).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("HF_TOKEN") && !shown.contains("cret"), "{shown}");
    }

    #[test]
    fn a_token_prints_as_redacted_everywhere() {
        let settings = settings(&[("HOME", "/h"), ("HF_TOKEN", "very-secret")]).unwrap();
        let token = settings.token.clone().unwrap();
        assert_eq!(format!("{token} {token:?} {:?}", Some(&token)), "[redacted] [redacted] Some([redacted])");
        assert!(!format!("{settings:#?}").contains("very-secret"));
    }

    #[test]
    fn an_endpoint_is_an_address_without_credentials() {
        let endpoint = |text: &str| settings(&[("HOME", "/h"), ("HF_ENDPOINT", text)]).map(|s| s.endpoint);
        assert_eq!(endpoint("http://127.0.0.1:9/").unwrap(), "http://127.0.0.1:9");
        assert_eq!(endpoint("https://mirror.invalid/hf/").unwrap(), "https://mirror.invalid/hf");
        for bad in
            ["mirror.invalid", "ftp://mirror.invalid", "https://", "https://me:pw@mirror.invalid", "a b"]
        {
            let error = endpoint(bad).unwrap_err().to_string();
            assert!(error.starts_with("HF_ENDPOINT: ") && !error.contains("pw"), "{error}");
        }
        assert!(settings(&[("HOME", "/h")]).unwrap().endpoint.starts_with("https://"));
    }

    #[test]
    fn a_token_file_that_cannot_be_read_is_told_and_one_that_is_not_there_yet_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (home, file) = (folder.path().to_str().unwrap(), folder.path().join("token"));
        let named = [("HF_HOME", home), ("HF_TOKEN_PATH", file.to_str().unwrap())];
        for pairs in [&named[..1], &named] {
            assert!(settings(pairs).unwrap().token.is_none());
            std::fs::write(&file, "hf_x\n").unwrap();
            assert_eq!(settings(pairs).unwrap().token.unwrap().bearer(), "Bearer hf_x");
            std::fs::write(&file, [0xff]).unwrap();
            let error = settings(pairs).unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()) && error.contains("HF_TOKEN"), "{error}");
            std::fs::remove_file(&file).unwrap();
        }
        // As root, everything may be read, but a folder is no file for anybody.
        std::fs::create_dir(&file).unwrap();
        assert!(settings(&named[..1]).unwrap().token.is_none());
        assert!(settings(&named).unwrap_err().to_string().starts_with("HF_TOKEN_PATH: "));
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let patience = Patience::default();
        assert_eq!([1, 2, 3, 6, 40].map(|n| patience.wait(n).as_secs()), [1, 2, 4, 30, 30]);
    }
}
