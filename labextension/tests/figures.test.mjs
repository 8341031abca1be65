import assert from 'node:assert/strict';
import { test } from 'node:test';

import { basename, duration, percentage, short, size, sizeOf } from '../lib-tests/figures.js';

const GIB = 2 ** 30;

test('sizes have three digits and a unit', () => {
  const found = [0, 999, 1000, 2 ** 20, 1.25 * GIB, 999.6 * GIB, 5000 * GIB].map(size);
  assert.deepEqual(found, ['0 B', '999 B', '1 KiB', '1 MiB', '1.25 GiB', '1000 GiB', '4.88 TiB']);
});

test('a part is in the unit of its whole', () => {
  assert.equal(sizeOf(1.2 * GIB, 4 * GIB), '1.2/4 GiB');
  assert.equal(sizeOf(0, 4 * GIB), '0/4 GiB');
  assert.equal(sizeOf(2 ** 20, 4 * GIB), '0.001/4 GiB');
});

test('times have two units at most', () => {
  const found = [0, 0.0231, 0.0996, 0.43, 2.5, 59.94, 59.96, 125, 1400, 3600, 5000, 90000, 864000];
  assert.deepEqual(found.map(duration), [
    ...['0 s', '23 ms', '0.1 s', '0.43 s', '2.5 s', '59.9 s', '1 min', '2 min 5 s', '23 min'],
    ...['1 h', '1 h 23 min', '1 d 1 h', '10 d']
  ]);
});

test('a percentage stays within its bar', () => {
  assert.deepEqual(
    [percentage(1, 4), percentage(5, 4), percentage(-1, 4), percentage(1, 0)],
    [25, 100, 0, 0]
  );
});

test('a name of any length is cut, and prints', () => {
  const cut = short('x'.repeat(10_000), 61);
  assert.equal(cut, `${'x'.repeat(30)}…${'x'.repeat(30)}`);
  assert.equal(short('a\n\u202eb\u0000.ipynb'), 'a  b .ipynb');
  assert.equal(Array.from(short('😀'.repeat(5000))).length, 59);
  assert.equal(short('lesson.ipynb'), 'lesson.ipynb');
  assert.equal(basename('a/b/lesson.ipynb'), 'lesson.ipynb');
});
