import type { Suite } from '../suite.ts';
import { api } from './api.ts';
import { burst } from './burst.ts';
import { compat } from './compat.ts';
import { createExec } from './create-exec.ts';
import { egress } from './egress.ts';
import { fairShare } from './fair-share.ts';
import { fleet } from './fleet.ts';
import { functions } from './functions.ts';
import { functionsCold } from './functions-cold.ts';
import { functionsGuest } from './functions-guest.ts';
import { functionsMap } from './functions-map.ts';
import { images } from './images.ts';
import { intercept } from './intercept.ts';
import { lifecycle } from './lifecycle.ts';
import { memory } from './memory.ts';
import { memoryCopies } from './memory-copies.ts';
import { objectStores } from './object-stores.ts';
import { previews } from './previews.ts';
import { ssh } from './ssh.ts';
import { tenancy } from './tenancy.ts';
import { toolbox } from './toolbox.ts';
import { usage } from './usage.ts';
import { volumes } from './volumes.ts';

/** What `npm run bench` runs, in this order. */
export const SUITES: Record<string, Suite> = {
  'create-exec': createExec,
  burst,
  memory,
  api,
  lifecycle,
  'memory-copies': memoryCopies,
  tenancy,
  'fair-share': fairShare,
  fleet,
  usage,
  images,
  intercept,
  ssh,
  toolbox,
  previews,
  egress,
  compat,
  functions,
  'functions-cold': functionsCold,
  'functions-guest': functionsGuest,
  'functions-map': functionsMap,
  'object-stores': objectStores,
  volumes,
};
