//! The filter `tojson` as transformers defines it for chat templates: the output of Python's `json.dumps(x,
//! ensure_ascii=False)`, byte for byte. Only integers beyond 64 bits differ: they are read as floats.
//!
//! minijinja's own filter escapes `<`, `>`, `&` and `'` for HTML, which would change the tool descriptions
//! that a model reads.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The filter. It takes `indent`, `ensure_ascii`, `separators` and `sort_keys` as keyword arguments.
pub(crate) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match (separators.as_deref(), indent) {
        (Some([item, key]), _) => (item.clone(), key.clone()),
        (_, Some(_)) => (",".to_owned(), ": ".to_owned()),
        _ => (", ".to_owned(), ": ".to_owned()),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { out: String::new(), indent, item, key, ascii, sorted };
    writer.value(value, 1)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None | ValueKind::Undefined => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut count = 0;
                for item in value.try_iter()? {
                    self.next(&mut count, depth);
                    self.value(&item, depth + 1)?;
                }
                self.close(']', count, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.out.push('{');
                let mut count = 0;
                for key in keys {
                    self.next(&mut count, depth);
                    self.string(&key.to_string());
                    let separator = std::mem::take(&mut self.key);
                    self.out.push_str(&separator);
                    self.key = separator;
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.close('}', count, depth);
            }
            other => {
                let message = format!("a value of kind {other} has no JSON form");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn next(&mut self, count: &mut usize, depth: usize) {
        if *count > 0 {
            self.out.push_str(&self.item);
        }
        *count += 1;
        self.line(depth);
    }

    fn close(&mut self, bracket: char, count: usize, depth: usize) {
        if count > 0 {
            self.line(depth - 1);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&python_float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Returns a float as Python prints it, and `None` for every other value.
pub(crate) fn float_text(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok().map(python_float))?
}

/// Formats a number like `repr` of a Python float: shortest digits, with an exponent from 1e16 up and below
/// 1e-4.
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Converts a JSON tree to a template value and keeps the order of keys.
pub(crate) fn template_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (_, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => Value::from(s.as_str()),
        serde_json::Value::Array(items) => items.iter().map(template_value).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), template_value(v))))
        }
    }
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    use super::*;

    fn dumps(json: &str, filter: &str) -> String {
        let mut env = Environment::new();
        env.add_filter("tojson", tojson);
        let x = template_value(&serde_json::from_str(json).unwrap());
        let context = Value::from_pairs([("x", x)]);
        env.render_str(&format!("{{{{ x|{filter} }}}}"), context).unwrap()
    }

    #[test]
    fn tojson_writes_what_python_writes() {
        let json = r#"{"b":1,"a":[1.0,2.5e-7,1e22,-0.0,true,null,"<é>&'\"\n\u0001"],"e":{},"f":[]}"#;
        assert_eq!(
            dumps(json, "tojson"),
            r#"{"b": 1, "a": [1.0, 2.5e-07, 1e+22, -0.0, true, null, "<é>&'\"\n\u0001"], "e": {}, "f": []}"#
        );
        assert_eq!(
            dumps(r#"{"b":1,"a":"~\u007fé😀"}"#, "tojson(sort_keys=true, ensure_ascii=true)"),
            r#"{"a": "~\u007f\u00e9\ud83d\ude00", "b": 1}"#
        );
        assert_eq!(dumps(r#""\u007f""#, "tojson"), "\"\u{7f}\"");
    }

    #[test]
    fn tojson_indents_like_python() {
        assert_eq!(
            dumps(r#"{"a":[1,{"b":2}],"c":{}}"#, "tojson(indent=2)"),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": {}\n}"
        );
    }
}
