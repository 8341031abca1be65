/** Writes a hash of the sources beside what was built of them, for a test that has no node. */

import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';

const files = ['package.json', 'tsconfig.json', 'yarn.lock'];
for (const folder of ['schema', 'src', 'style']) {
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) {
      files.push(`${entry.parentPath ?? entry.path}/${entry.name}`);
    }
  }
}
const hash = createHash('sha256');
for (const file of files.sort()) {
  const text = readFileSync(file);
  hash.update(`${file} ${text.length}\n`).update(text);
}
writeFileSync('built/sources.sha256', `${hash.digest('hex')}\n`);
