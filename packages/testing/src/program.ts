/** Programs that tests start, as set-up has bundled them. */
export { programOf } from '@releap/runner/program';
