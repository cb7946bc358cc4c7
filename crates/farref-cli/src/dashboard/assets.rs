//! The page's own files, which are part of the program.

use super::http::Response;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($kind:ident $name:literal),* $(,)?) => {
        &[$(($name, $kind, include_str!(concat!("../../assets/", $name)))),*]
    };
}

/// Name, kind, content.
const FILES: &[(&str, &str, &str)] = files![
    HTML "index.html",
    CSS "style.css",
    JS "app.js",
    JS "calls.js",
    JS "chart.js",
    JS "contexts.js",
    JS "dom.js",
    JS "events.js",
    JS "format.js",
    JS "leaks.js",
    JS "rates.js",
    JS "references.js",
    JS "timeline.js",
    JS "workers.js",
];

/// A file of the page; the page itself has no name.
pub(super) fn find(name: &str) -> Option<Response> {
    let name = if name.is_empty() { "index.html" } else { name };
    let (_, kind, content) = FILES.iter().find(|(known, ..)| *known == name)?;
    Some(Response::new(kind, *content))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not in the program could not be fetched: there may be no network.
    #[test]
    fn no_file_names_another_host_or_makes_markup_of_text() {
        for (name, _, content) in FILES {
            for forbidden in [
                "http:",
                "https:",
                "//cdn",
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "document.write",
                "eval(",
            ] {
                let allowed = content.replace("http://www.w3.org/2000/svg", "");
                assert!(!allowed.contains(forbidden), "{forbidden} is in {name}");
            }
        }
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for (name, _, content) in FILES.iter().filter(|(name, ..)| name.ends_with(".js")) {
            for import in content
                .lines()
                .filter_map(|line| line.split_once(" from \"./"))
            {
                let wanted = import.1.trim_end_matches("\";");
                assert!(find(wanted).is_some(), "{name} imports {wanted}");
            }
        }
    }
}
