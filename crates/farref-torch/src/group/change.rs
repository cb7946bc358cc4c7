//! What a worker may do to a dynamic group in its turn, and the token that says so in the store.

/// What a worker does in its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Join,
    Leave,
    /// Takes another worker off the list, which is gone. A worker can be at several at once, so they have numbers.
    Remove(u32),
}

const TOKEN: &str = "Token_for_";

impl Change {
    /// What a worker puts into the store in its turn.
    pub(super) fn token(self, name: &str) -> String {
        match self {
            Self::Join => format!("{TOKEN}{name}_join"),
            Self::Leave => format!("{TOKEN}{name}_leave"),
            Self::Remove(number) => format!("{TOKEN}{name}_remove{number}"),
        }
    }

    /// Whose token it is, and what for.
    pub(super) fn of_token(token: &str) -> Option<(&str, Self)> {
        let (name, change) = token.strip_prefix(TOKEN)?.rsplit_once('_')?;
        let change = match change {
            "join" => Self::Join,
            "leave" => Self::Leave,
            _ => Self::Remove(change.strip_prefix("remove")?.parse().ok()?),
        };
        (!name.is_empty()).then_some((name, change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_whose_it_is_and_what_for() {
        for change in [Change::Join, Change::Leave, Change::Remove(7)] {
            for name in ["a", "a_join", "a_remove1", "Token_for_a"] {
                let token = change.token(name);
                assert_eq!(Change::of_token(&token), Some((name, change)), "{token}");
            }
        }
        for other in [
            "",
            "Token_for_",
            "Token_for__join",
            "Token_for_a_removex",
            "a_join",
        ] {
            assert_eq!(Change::of_token(other), None, "{other}");
        }
    }
}
