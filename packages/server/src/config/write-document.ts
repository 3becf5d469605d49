/** Generates docs/configuration.md: `npm run docs:configuration`. */
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { configurationDocument } from './document.ts';

await writeFile(
  path.resolve(import.meta.dirname, '../../../../docs/configuration.md'),
  configurationDocument(),
);
