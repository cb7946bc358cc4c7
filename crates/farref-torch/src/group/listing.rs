//! The list of a dynamic group's members, as it is in the store.

/// Ids have to fit an `i16`.
pub(super) const MAX_IDS: u32 = 1 << 15;

/// The members of a dynamic group as they are in the store: `worker0-0,worker1-1,`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Listing(pub(super) Vec<(String, u16)>);

impl Listing {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let members = text.split_terminator(',').map(|member| {
            let parsed = member.rsplit_once('-').and_then(|(name, id)| {
                let id = id.parse::<u16>().ok()?;
                let fits = !name.is_empty() && u32::from(id) < MAX_IDS;
                fits.then(|| (name.to_owned(), id))
            });
            let start: String = member.chars().take(200).collect();
            parsed.ok_or_else(|| format!("{start:?} is no name and id"))
        });
        members.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn text(&self) -> String {
        let members = self.0.iter().map(|(name, id)| format!("{name}-{id},"));
        members.collect()
    }
}
