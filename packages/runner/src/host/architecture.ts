import { architectureOf } from '@releap/contract/architecture';

/** Of this host and its guests. */
export const ARCHITECTURE = architectureOf(process.arch);
