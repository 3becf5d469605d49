/** Whether sandboxes can mount object stores here: what the runner looks for. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { storeMountProgram } from '@releap/contract/store-mount-program';
import type { Check } from './check.ts';

/** @param root the checkout, whose `build` folder set-up fills */
export function checkObjectStores(root: string): Check {
  const isMade = existsSync(storeMountProgram(join(root, 'build')));
  return {
    id: 'object-stores',
    title: 'Object stores',
    status: isMade ? 'ok' : 'warn',
    detail: isMade
      ? 'sandboxes mount them: rclone'
      : 'what mounts need is not made yet: set-up makes it after the first start, or run `npm run setup`',
  };
}
