import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileKeys, type KeyEncryptionKeys } from '@releap/control';
import { quiet } from './logging.ts';

/** The path of a key file that need not exist, in a folder that goes with the test file. */
export function keyPath(): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'releap-keys-'));
  after(() => rm(folder, { recursive: true, force: true }));
  return path.join(folder, 'keys.json');
}

export function testKeys(file = keyPath()): KeyEncryptionKeys {
  return fileKeys(file, quiet);
}
