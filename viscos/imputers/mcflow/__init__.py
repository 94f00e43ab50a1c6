"""MCFlow (Richardson et al., 2020): a flow, and a network from latents to likelier ones."""

from viscos.imputers.mcflow.imputer import MCFlowImputer as MCFlowImputer
