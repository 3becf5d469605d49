import { BILLING } from './variables/billing.ts';
import { CERTIFICATES } from './variables/certificates.ts';
import { LOG, THIS_MACHINE, TRACES, WHERE_THINGS_ARE } from './variables/host.ts';
import { CREDENTIALS, DATABASE, NETWORK } from './variables/network.ts';
import { LIMITS, SIGNING_IN, THE_SERVICE } from './variables/service.ts';
import { THE_STORE } from './variables/store.ts';
export { LOG_LEVELS } from './variables/host.ts';
export { BUILTIN_IMAGE_NAMES } from './variables/service.ts';
export type { Variable } from './variables/variable.ts';

/** Every variable of the server: parsing, defaults and docs/configuration.md all come from here. */
export const VARIABLES = {
  ...WHERE_THINGS_ARE,
  ...NETWORK,
  ...CERTIFICATES,
  ...DATABASE,
  ...CREDENTIALS,
  ...THE_STORE,
  ...THIS_MACHINE,
  ...THE_SERVICE,
  ...LIMITS,
  ...BILLING,
  ...SIGNING_IN,
  ...TRACES,
  ...LOG,
} as const;

export type VariableName = keyof typeof VARIABLES;
