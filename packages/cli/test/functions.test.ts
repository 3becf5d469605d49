/** `rlp fn`, against a real control plane and a host that follows a script. All of these tests share both. */
import './functions/versions.ts';
import './functions/invocations.ts';
import './functions/schedule-and-invoke.ts';
