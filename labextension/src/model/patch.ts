/** JSON merge patches (RFC 7396). */

export type Json = { [key: string]: unknown };

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * What a patch makes of a value, as section 2 of the RFC says.
 *
 * Leaves both as they are; what the patch does not touch is shared with the old value.
 */
export function merge(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) {
    return patch;
  }
  const made = new Map(Object.entries(isObject(target) ? target : {}));
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) {
      made.delete(key);
    } else {
      made.set(key, merge(made.get(key), value));
    }
  }
  // Not by assignment: a key may be "__proto__".
  return Object.fromEntries(made);
}
