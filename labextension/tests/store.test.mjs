import assert from 'node:assert/strict';
import { test } from 'node:test';

import { NOTHING } from '../lib-tests/state.js';
import { Store } from '../lib-tests/store.js';

const STATE = {
  ...NOTHING,
  at: 1000,
  known: true,
  shares: true,
  kernels: { a: { state: 'idle' } }
};

test('patches follow the whole state, and each is told of', () => {
  const store = new Store(() => 50);
  let changes = 0;
  store.changed.connect(() => changes++);
  store.receive({ state: STATE });
  store.receive({ patch: { at: 1001, kernels: { a: null, b: { state: 'running' } } } });
  assert.deepEqual(store.state.kernels, { b: { state: 'running' } });
  assert.equal(store.kernel('a'), undefined);
  assert.equal(store.kernel('toString'), undefined);
  assert.equal(changes, 2);
});

test('a clock of this machine that is wrong does not matter', () => {
  let now = 50;
  const store = new Store(() => now);
  store.receive({ state: STATE });
  now = 53;
  assert.equal(store.serverNow, 1003);
});

test('what was known stays while the server is silent, and is fresh when it speaks again', () => {
  const store = new Store();
  store.fallSilent('away');
  assert.equal(store.silence, null); // nothing is shown that could be of earlier
  store.receive({ state: STATE });
  store.fallSilent('away');
  assert.deepEqual([store.stale, store.kernel('a').state], [true, 'idle']);
  store.fallSilent('refused');
  assert.equal(store.silence, 'refused');
  store.receive({ patch: { problem: 'The broker does not answer.' } });
  assert.deepEqual([store.stale, store.silence], [true, null]);
  store.receive({ patch: { problem: '' } });
  assert.equal(store.stale, false);
});

test('without a kernel nothing that was told of one stays', () => {
  const store = new Store();
  let changes = 0;
  store.changed.connect(() => changes++);
  store.forget();
  assert.equal(changes, 0);
  store.receive({ state: { ...STATE, device: { lanes: { 0: { session: 1 } } } } });
  store.fallSilent('away');
  store.forget();
  assert.deepEqual([store.state, store.stale, store.known], [NOTHING, false, false]);
  assert.equal(store.lanes.stretches.size, 0);
  assert.equal(changes, 3);
});

test('a server that says less than it should is no error', () => {
  const store = new Store();
  store.receive({ state: { at: 1 } });
  assert.deepEqual(store.state.kernels, {});
});
