import assert from 'node:assert/strict';
import { test } from 'node:test';

import { merge } from '../lib-tests/patch.js';

// Appendix A of RFC 7396: target, patch, result.
const EXAMPLES = [
  [{ a: 'b' }, { a: 'c' }, { a: 'c' }],
  [{ a: 'b' }, { b: 'c' }, { a: 'b', b: 'c' }],
  [{ a: 'b' }, { a: null }, {}],
  [{ a: 'b', b: 'c' }, { a: null }, { b: 'c' }],
  [{ a: ['b'] }, { a: 'c' }, { a: 'c' }],
  [{ a: 'c' }, { a: ['b'] }, { a: ['b'] }],
  [{ a: { b: 'c' } }, { a: { b: 'd', c: null } }, { a: { b: 'd' } }],
  [{ a: [{ b: 'c' }] }, { a: [1] }, { a: [1] }],
  [
    ['a', 'b'],
    ['c', 'd'],
    ['c', 'd']
  ],
  [{ a: 'b' }, ['c'], ['c']],
  [{ a: 'foo' }, null, null],
  [{ a: 'foo' }, 'bar', 'bar'],
  [{ e: null }, { a: 1 }, { e: null, a: 1 }],
  [[1, 2], { a: 'b', c: null }, { a: 'b' }],
  [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }]
];

test('patches do what the RFC says, and leave both sides as they are', () => {
  for (const [target, patch, result] of EXAMPLES) {
    const before = JSON.stringify([target, patch]);
    assert.deepEqual(merge(target, patch), result);
    assert.equal(JSON.stringify([target, patch]), before);
  }
});

test('a key is a key, whatever its name', () => {
  const made = merge({}, JSON.parse('{"__proto__": {"x": 1}, "constructor": 2}'));
  assert.deepEqual(Object.keys(made), ['__proto__', 'constructor']);
  assert.equal({}.x, undefined);
});
