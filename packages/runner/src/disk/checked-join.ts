import { join } from 'node:path';

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

/**
 * Path of a file in a folder, for untrusted names.
 * @throws when the name could leave the folder
 */
export function checkedJoin(folder: string, name: string): string {
  if (!NAME.test(name)) throw new Error(`not a file name: ${JSON.stringify(name.slice(0, 100))}`);
  return join(folder, name);
}
