import assert from 'node:assert/strict';
import { test } from 'node:test';

import { doneText, waitText } from '../lib-tests/celltext.js';
import { budgetWords, reason, shareWords, staleWords, stateWords } from '../lib-tests/words.js';

const trans = { __: (text, ...args) => text.replace(/%(\d)/g, (_, index) => args[index - 1]) };
const waiting = { state: 'waiting', waits_on: 'turn', ahead: 2 };

test('each state has words of its own', () => {
  const states = ['running', 'idle', 'starting', 'spilled', 'paused', 'lost', 'of a newer broker'];
  assert.deepEqual(
    states.map(state => stateWords({ state }, trans)),
    ['running', 'resting', 'starting', 'resting', 'paused', 'lost', 'resting']
  );
  assert.equal(stateWords(undefined, trans), 'not in use');
});

test('whoever waits hears for what, and how many are ahead', () => {
  assert.equal(stateWords(waiting, trans), 'waiting, 2 ahead');
  assert.equal(stateWords({ ...waiting, ahead: 0 }, trans), 'waiting, next');
  // An older broker does not say how many.
  assert.equal(stateWords({ ...waiting, ahead: undefined }, trans), 'waiting');
  assert.equal(waitText({ ...waiting, ahead: 0 }, trans), 'waits for the GPU: next');
  assert.equal(waitText({ ...waiting, ahead: undefined }, trans), 'waits for the GPU');
  const reasons = ['turn', 'memory', 'copy', 'drain', 'budget', 'of a newer broker'];
  for (const say of [stateWords, waitText, reason]) {
    const said = reasons.map(waits_on => say({ ...waiting, waits_on }, trans));
    assert.equal(new Set(said).size, 5);
    assert.equal(said[0], said[5]);
  }
  assert.equal(waitText(waiting, trans), 'waits for the GPU: 2 ahead');
  assert.equal(waitText({ ...waiting, state: 'running' }, trans), '');
});

test('a loss costs no more than it must', () => {
  assert.match(reason({ state: 'lost' }, trans), /The kernel lives/);
});

test('names are said where they may be seen, each once', () => {
  const said = behind => reason({ ...waiting, behind }, trans, 'user1');
  assert.match(said(['user2', '', 'user2', 'user3']), /user2, user3\.$/);
  assert.match(said(['user1', 'user2']), /now with user2\.$/);
  assert.match(said(['user1', 'user1']), /notebook of yours/);
  assert.equal(said(['']), said(undefined));
});

test('a share without limits has no whole', () => {
  const share = { used: 2 ** 30, memory: 2 ** 32, budget: 3600, period: 86400, spent: 60 };
  assert.equal(shareWords(share), '1/4 GiB');
  assert.equal(shareWords({ ...share, memory: 0 }), '1 GiB');
  assert.equal(shareWords({ ...share, memory: 0, used: 0 }), '');
  assert.equal(shareWords(undefined), '');
  assert.equal(budgetWords(share, trans), '1 min of 1 h in 1 d');
  assert.equal(budgetWords({ ...share, budget: 0 }, trans), '1 min, no limit');
});

test('a cell that used the device says how long, and no other', () => {
  assert.equal(doneText(1.5, 12, trans), 'GPU 1.5 s of 12 s');
  assert.equal(doneText(0, 12, trans), '');
  assert.equal(doneText(undefined, 12, trans), '');
});

test('one sentence says why figures are old', () => {
  assert.equal(staleWords({ problem: 'Away.' }, null, trans), 'Away.');
  assert.match(staleWords({ problem: 'Away.' }, 'away', trans), /notebook server does not answer/);
  assert.match(staleWords({ problem: 'Away.' }, 'refused', trans), /sign in again/);
  assert.equal(staleWords({ problem: '' }, null, trans), '');
});
