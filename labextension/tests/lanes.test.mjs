import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Lanes, MOST, SPAN } from '../lib-tests/lanes.js';

const device = sessions => ({
  lanes: Object.fromEntries(Object.entries(sessions).map(([k, session]) => [k, { session }]))
});
const of = (lanes, lane) => lanes.stretches.get(lane).map(({ begin, session }) => [begin, session]);

test('a stretch ends where the next begins', () => {
  const lanes = new Lanes();
  lanes.see(device({ 0: 1 }), 100);
  lanes.see(device({ 0: 1 }), 101);
  lanes.see(device({ 0: 2 }), 102);
  lanes.see(device({ 0: undefined }), 103);
  assert.deepEqual(of(lanes, '0'), [
    [100, 1],
    [102, 2],
    [103, null]
  ]);
});

test('who had a lane before the page looked is there since then', () => {
  const lanes = new Lanes();
  lanes.see({ lanes: { 0: { session: 1, since: 90 } } }, 100);
  lanes.see({ lanes: { 0: { session: 2, since: 60 } } }, 101); // not before the one it follows
  assert.deepEqual(of(lanes, '0'), [
    [90, 1],
    [90, 2]
  ]);
});

test('what ended more than the span ago is forgotten, and so is a lane that is gone', () => {
  const lanes = new Lanes();
  lanes.see(device({ 0: 1, 1: 1 }), 100);
  lanes.see(device({ 0: 2 }), 110);
  lanes.see(device({ 0: 3 }), 110 + SPAN);
  assert.deepEqual(of(lanes, '0'), [
    [110, 2],
    [110 + SPAN, 3]
  ]);
  assert.equal(lanes.stretches.has('1'), false);
});

test('it never keeps more than so much', () => {
  const lanes = new Lanes();
  for (let number = 0; number < 5 * MOST; number++) {
    lanes.see(device({ 0: number }), 100 + number / 1000);
  }
  assert.equal(lanes.stretches.get('0').length, MOST);
});

test('a clock that was set back begins anew', () => {
  const lanes = new Lanes();
  lanes.see(device({ 0: 1 }), 1000);
  lanes.see(device({ 0: 2 }), 10);
  assert.deepEqual(of(lanes, '0'), [[10, 2]]);
});

test('no device has no lanes', () => {
  const lanes = new Lanes();
  lanes.see(device({ 0: 1 }), 100);
  lanes.see(undefined, 101);
  assert.equal(lanes.stretches.size, 0);
});
