//! The rules in words, for whoever is told that one is broken. `docs/reliability.md` has the same sentences.

/// What must not be, by rule.
const RULES: [(&str, &str); 11] = [
    ("CK-1", "a function runs twice for one call, or for none"),
    (
        "CK-2",
        "a call brings a wrong value, or one of a function that never ran",
    ),
    (
        "CK-3",
        "a call ends with an error that nothing allows, or before its time",
    ),
    (
        "CK-4",
        "a call never ends, ends later than its limits say, or ends twice",
    ),
    ("CK-5", "a value is made twice"),
    ("CK-6", "a value is used after it was freed, or freed twice"),
    (
        "CK-7",
        "a value is freed while a worker that is well keeps a reference to it, or one is on its way to such a worker, which keeps it later",
    ),
    (
        "CK-8",
        "a value is not freed when nobody has a reference to it any more",
    ),
    (
        "CK-9",
        "a worker ends badly, or well though nobody told it to end and it did not leave, is taken for dead though nothing was done to it, or does not come to an end",
    ),
    (
        "CK-10",
        "references, calls, contexts or values are left when all have let go of everything",
    ),
    (
        "CK-11",
        "a process grows: its memory, its references, its open calls",
    ),
];

/// What must not be, by this rule.
pub(crate) fn sentence(rule: &str) -> &'static str {
    let mut rules = RULES.into_iter();
    let found = rules.find(|(known, _)| *known == rule);
    found.map_or("", |(_, sentence)| sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_told_as_the_documentation_says_it() -> std::io::Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reliability.md");
        let documentation = std::fs::read_to_string(file)?;
        let rows = documentation
            .lines()
            .filter(|line| line.starts_with("| CK-"));
        assert_eq!(rows.count(), RULES.len());
        for (rule, sentence) in RULES {
            let row = format!("| {rule} | {sentence} |");
            assert!(documentation.contains(&row), "{row}");
        }
        Ok(())
    }
}
