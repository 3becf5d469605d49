/** The program that mounts object stores in guests: the runner sends it to them, and `rlp doctor` says whether it is there. */
import { join } from 'node:path';

/** Where set-up builds it, after the first start. @param build folder that set-up fills */
export function storeMountProgram(build: string): string {
  return join(build, 'guest/storemount');
}
