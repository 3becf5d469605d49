import { resolve } from 'node:path';

/** Templates and images that all tests share. Kept from run to run: they are made again when what they are made from has changed. */
export const TEST_CACHE = resolve(import.meta.dirname, '../../../build/test-cache');
