//! A small bank: its functions fail with an error of their own, and their callers act on it.
//!
//! `bank` has the accounts. `clerk` moves money between them for `customer`. An error that the bank
//! returns arrives as what it is, where it is asked for: at the clerk, who knows what to do about some of them,
//! and at the customer, two workers away from where it was raised. Whoever does not care writes `?`.
//! `cargo run -p farref-examples --example accounts` prints:
//!
//! ```text
//! ann has 100
//! ann gives bob 60: ann has 40
//! ann gives bob 60: the clerk took the 40 that there were
//! ann gives eve 1: there is no account `eve`
//! ann gives bob 1 through `bank`, which is no clerk: it failed, and says "account `ann` has only 0"
//! a panic is nobody's error: `accounts::audit` panicked on worker `bank`: the books are wrong
//! all three have ended
//! ```

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail, ensure};
use farref::{RRef, Worker};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What the bank may have against it. It is sent, so it implements serde's traits.
#[derive(PartialEq, Debug, Error, Serialize, Deserialize)]
pub enum BankError {
    #[error("there is no account `{0}`")]
    NoAccount(String),
    #[error("account `{0}` has only {1}")]
    Short(String, u64),
}

pub struct Bank {
    accounts: HashMap<String, u64>,
}

#[farref::remote]
impl Bank {
    pub async fn open(accounts: Vec<(String, u64)>) -> Self {
        let accounts = accounts.into_iter().collect();
        Self { accounts }
    }

    pub async fn balance(&self, name: String) -> Result<u64, BankError> {
        self.accounts
            .get(&name)
            .copied()
            .ok_or(BankError::NoAccount(name))
    }

    pub async fn transfer(&mut self, from: String, to: String, sum: u64) -> Result<(), BankError> {
        let has = self.balance(from.clone()).await?;
        let gets = self.balance(to.clone()).await?;
        let Some(left) = has.checked_sub(sum) else {
            return Err(BankError::Short(from, has));
        };
        self.accounts.insert(from, left);
        self.accounts.insert(to, gets + sum);
        Ok(())
    }
}

/// Gives what there is, if it is less. Says how much that was.
#[farref::remote]
async fn give(bank: RRef<Bank>, from: String, to: String, sum: u64) -> farref::Result<u64> {
    let Err(error) = bank.transfer(from.clone(), to.clone(), sum).await else {
        return Ok(sum);
    };
    let Some(&BankError::Short(_, has @ 1..)) = error.downcast_ref() else {
        return Err(error); // as it is: whoever called may know what to do
    };
    bank.transfer(from, to, has).await?;
    Ok(has)
}

#[farref::remote(name = "accounts::audit")]
async fn audit() -> Result<(), BankError> {
    panic!("the books are wrong")
}

async fn customer(me: &Worker) -> Result<()> {
    let [bank_worker, clerk] = [me.peer("bank")?, me.peer("clerk")?];
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(str::to_owned);
    let accounts = vec![(ann.clone(), 100), (bob.clone(), 0)];
    let bank = Bank::open_on(&bank_worker, accounts).remote();

    // Whoever does not care has the value, or farref's error with the text.
    println!("ann has {}", bank.balance(ann.clone()).await?);

    let all = give::on(&clerk, bank.clone(), ann.clone(), bob.clone(), 60).await?;
    let left = bank.balance(ann.clone()).await?;
    println!("ann gives bob {all}: ann has {left}");

    let less = give::on(&clerk, bank.clone(), ann.clone(), bob.clone(), 60).await?;
    println!("ann gives bob 60: the clerk took the {less} that there were");

    // Through the clerk, who handed it on: it is still the bank's own.
    let error = give::on(&clerk, bank.clone(), ann.clone(), eve.clone(), 1).await;
    let error = error.err().context("there is no eve")?;
    let own: BankError = error.downcast()?;
    println!("ann gives eve 1: {own}");
    ensure!(own == BankError::NoAccount(eve));

    // Whoever cares for all of them asks for what the function returned.
    let Err(own) = bank.transfer(ann, bob, 1).result().await? else {
        bail!("ann has nothing");
    };
    let says = own.to_string();
    println!("ann gives bob 1 through `bank`, which is no clerk: it failed, and says {says:?}");

    // What is not the function's own error is farref's, also here.
    let error = audit::on(&bank_worker).result().await.err();
    println!("a panic is nobody's error: {}", error.context("it panics")?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["customer", "bank", "clerk"])? {
        println!("all three have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "customer" {
        customer(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `customer` works
    }
    Ok(())
}
