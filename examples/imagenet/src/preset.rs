//! Configurations that come with the program, by name.

use clap::ValueEnum;

use crate::config::ConfigLayer;

/// A file of `presets/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// 300 epochs on ImageNet-1k at 224 pixels, 4,096 images an update
    #[value(name = "imagenet-300")]
    Imagenet300,
    /// The parts of that recipe in strengths for the shipped pictures, 32 epochs
    #[value(name = "shipped-recipe")]
    ShippedRecipe,
}

impl Preset {
    /// The file.
    pub fn toml(self) -> &'static str {
        match self {
            Self::Imagenet300 => include_str!("../presets/imagenet-300.toml"),
            Self::ShippedRecipe => include_str!("../presets/shipped-recipe.toml"),
        }
    }

    /// Its keys.
    pub fn layer(self) -> ConfigLayer {
        toml::from_str(self.toml()).expect("the presets are tested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;
    use crate::data::augment::mix::Mix;
    use crate::data::augment::rand_augment::RandAugment;

    #[test]
    fn every_preset_is_a_configuration() {
        for preset in Preset::value_variants() {
            TrainConfig::with_preset(Some(*preset), ConfigLayer::default()).unwrap();
        }
    }

    #[test]
    fn the_recipe_for_imagenet_is_the_published_one() {
        let config = TrainConfig::with_preset(Some(Preset::Imagenet300), ConfigLayer::default()).unwrap();
        assert_eq!(config.batch_size * config.accumulate, 4096);
        assert_eq!((config.epochs, config.warmup_epochs, config.lr), (300, 20.0, 4e-3));
        assert_eq!((config.weight_decay, config.label_smoothing, config.drop_path), (0.05, 0.1, 0.1));
        assert_eq!((config.ema_decay, config.clip_grad, config.random_erasing), (0.9999, 0.0, 0.25));
        assert_eq!(config.mix(), Mix { mixup: 0.8, cutmix: 1.0, prob: 1.0, switch_prob: 0.5 });
        assert_eq!(
            config.rand_augment(),
            Some(RandAugment { layers: 2, magnitude: 9.0, std: 0.5, prob: 0.5 })
        );
    }

    #[test]
    fn the_recipe_for_the_shipped_pictures_has_every_part() {
        let config = TrainConfig::with_preset(Some(Preset::ShippedRecipe), ConfigLayer::default()).unwrap();
        let Mix { mixup, cutmix, prob, .. } = config.mix();
        for part in
            [mixup, cutmix, prob, config.random_erasing, config.drop_path, config.ema_decay, config.clip_grad]
        {
            assert!(part > 0.0);
        }
        assert!(config.rand_augment().is_some());
        assert_eq!(config.epochs, 2 * TrainConfig::for_shipped_images().epochs);
    }
}
