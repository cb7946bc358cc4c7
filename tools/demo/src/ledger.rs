//! What became of every reference: made, handed on, freed, left behind.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::bail;
use farref::{Peer, Snapshot, Totals, Worker};

/// How long the group may take to notice that a worker was killed.
pub(super) const NOTICE: Duration = Duration::from_secs(20);
/// How long what was let go may take to be freed everywhere.
const PATIENCE: Duration = Duration::from_secs(10);

/// The sum over all workers that are there, and what the dead had.
pub(super) struct Ledger {
    pub(super) leaked: usize,
    pub(super) contexts: u32,
    created: u64,
    shared: u64,
    freed: u64,
    calls: u64,
    bytes: u64,
    took: Duration,
    reclaimed: Option<Reclaimed>,
}

/// What one worker held and owned when it was killed, and what became of that.
pub(super) struct Reclaimed {
    name: String,
    /// References that it held to values of the owners, by type.
    held: BTreeMap<String, usize>,
    /// Of those values, the ones that nobody else held.
    only: Vec<String>,
    /// Values that it owned itself.
    owned: usize,
    totals: Totals,
    /// How long after its death nobody counted it as a holder any more.
    within: Duration,
}

impl Ledger {
    /// Waits until what was let go is freed everywhere, and adds up.
    pub(super) async fn balance(
        me: &Worker,
        reclaimed: Option<Reclaimed>,
        took: Duration,
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        let mut snapshots = look(me).await?;
        while snapshots.iter().any(|one| !at_rest(one)) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
            snapshots = look(me).await?;
        }
        let dead = reclaimed.as_ref().map(|reclaimed| reclaimed.totals);
        let totals: Vec<Totals> = snapshots.iter().map(|one| one.totals).chain(dead).collect();
        let sum = |part: fn(&Totals) -> u64| totals.iter().map(part).sum();
        Ok(Self {
            leaked: snapshots.iter().map(|one| one.references_in_all).sum(),
            contexts: snapshots.iter().map(|one| one.contexts).sum(),
            created: sum(|totals| totals.references_created),
            shared: sum(|totals| totals.references_shared),
            freed: sum(|totals| totals.values_freed),
            calls: sum(|totals| totals.calls),
            bytes: sum(|totals| totals.bytes_sent),
            took,
            reclaimed,
        })
    }

    /// Its lines: what, and how much.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let line = |what: &str, much: String| (what.to_owned(), much);
        let mut lines = vec![
            line("references created", grouped(self.created)),
            line("references handed on", grouped(self.shared)),
            line("values freed", grouped(self.freed)),
        ];
        if let Some(reclaimed) = &self.reclaimed {
            let name = &reclaimed.name;
            let references: usize = reclaimed.held.values().sum();
            let types: Vec<String> = reclaimed
                .held
                .iter()
                .map(|(name, count)| format!("{count} {name}"))
                .collect();
            lines.push(line(
                &format!("released for {name}"),
                format!("{references} ({})", types.join(", ")),
            ));
            lines.push(line(
                "freed because of that",
                format!("{} ({})", reclaimed.only.len(), reclaimed.only.join(", ")),
            ));
            lines.push(line(
                "all of it after its death",
                format!("within {} ms", reclaimed.within.as_millis()),
            ));
            lines.push(line(
                &format!("values died with {name}"),
                reclaimed.owned.to_string(),
            ));
        }
        let per_second = self.calls as f64 / self.took.as_secs_f64();
        lines.extend([
            line("references leaked", self.leaked.to_string()),
            line("contexts left", self.contexts.to_string()),
            line(
                "calls",
                format!("{} ({per_second:.0}/s)", grouped(self.calls)),
            ),
            line("bytes sent", grouped(self.bytes)),
        ]);
        lines
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        for (index, (what, much)) in lines.iter().enumerate() {
            let end = if index + 1 < lines.len() { "\n" } else { "" };
            write!(f, "{what:<26} {much}{end}")?;
        }
        Ok(())
    }
}

impl Reclaimed {
    /// What a worker has that is going to be killed.
    pub(super) async fn before(victim: &Peer, owners: &[Peer]) -> anyhow::Result<Self> {
        let own = victim.snapshot().await?;
        let mut this = Self {
            name: victim.name().to_owned(),
            held: BTreeMap::new(),
            only: Vec::new(),
            owned: own
                .references
                .iter()
                .filter(|reference| reference.owner == victim.name())
                .count(),
            totals: own.totals,
            within: Duration::ZERO,
        };
        for owner in owners {
            for value in owner.snapshot().await?.references {
                if value.owner != owner.name() || !value.holders.contains(&this.name) {
                    continue;
                }
                // The demo's types have no parameters.
                let name = value.type_name.rsplit("::").next().unwrap_or_default();
                let name = name.to_owned();
                if value.holders.len() == 1 {
                    this.only.push(format!("its {name} on {}", owner.name()));
                }
                *this.held.entry(name).or_default() += 1;
            }
        }
        Ok(this)
    }

    /// Waits until the owners count it as a holder no longer.
    pub(super) async fn after(mut self, died: Instant, owners: &[Peer]) -> anyhow::Result<Self> {
        let dead = &self.name;
        loop {
            let mut left = 0;
            for owner in owners {
                let references = owner.snapshot().await?.references;
                let held = references
                    .iter()
                    .filter(|value| value.owner == owner.name() && value.holders.contains(dead));
                left += held.count();
            }
            if left == 0 {
                self.within = died.elapsed();
                return Ok(self);
            }
            if died.elapsed() > NOTICE + PATIENCE {
                bail!("{left} references of {dead} are not released after its death");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn look(me: &Worker) -> anyhow::Result<Vec<Snapshot>> {
    let mut snapshots = vec![me.snapshot()];
    for peer in me.peers() {
        if !peer.is_me() {
            snapshots.push(peer.snapshot().await?);
        }
    }
    Ok(snapshots)
}

fn at_rest(snapshot: &Snapshot) -> bool {
    snapshot.references_in_all == 0 && snapshot.contexts == 0
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_kept_apart() {
        let all = [0, 7, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "7", "999", "1,000", "1,234,567"]);
    }
}
