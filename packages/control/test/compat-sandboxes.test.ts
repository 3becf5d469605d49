/**
 * The compatibility facade's sandboxes, as its wire protocol writes them. The SDK itself is tested against real sandboxes. All of these
 * tests share one control plane.
 */
import './compat-sandboxes/create.ts';
import './compat-sandboxes/life.ts';
import './compat-sandboxes/intervals.ts';
import './compat-sandboxes/list.ts';
import './compat-sandboxes/refusals.ts';
