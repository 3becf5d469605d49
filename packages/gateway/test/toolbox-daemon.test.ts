/**
 * The toolbox daemon of a real agent, as clients reach it: through the gateway, a runner's data server and the agent. All of these
 * tests share one agent and one gateway.
 */
import './toolbox-daemon/access.ts';
import './toolbox-daemon/transfers.ts';
import './toolbox-daemon/files.ts';
import './toolbox-daemon/processes.ts';
