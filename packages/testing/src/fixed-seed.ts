/**
 * Loaded before each test file with properties, except in a nightly run: the same inputs in every run, so that a
 * change is refused only for what it does itself. `npm run test:nightly` draws new inputs each time.
 */
import { configureGlobal, readConfigureGlobal } from 'fast-check';

const SEED = 1;

configureGlobal({ seed: SEED, ...readConfigureGlobal() });
